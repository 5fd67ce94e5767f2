"""Sentence patterns, topics and evidence of English, Japanese and Chinese.

`limpet.memory.facts.rules` applies them to what users say.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from limpet.core.values.memory_records import FactKind

TOPIC: Final = "*"
"""In the place of what a fact is about: the topic that the sentence names; what follows it, if it names none."""


class Rule(msgspec.Struct, frozen=True):
    """Sentences of one form: which kind of fact they are, and about what.

    `about` may name groups of the pattern. `{items}` stands for each thing of a list. A weak rule does not
    hold for a request, a plan or a doubt.
    """

    pattern: re.Pattern[str]
    kind: FactKind
    about: str
    weak: bool


class Evidence(msgspec.Struct, frozen=True):
    """Sentences that are worth keeping for what is in them: a date, an amount, an identifier."""

    speaker: re.Pattern[str]
    thing: re.Pattern[str]
    kind: FactKind


class Language(msgspec.Struct, frozen=True):
    """How the speakers of one language say what is true of them.

    `hint`: what every sentence has that any rule is about. `unsure`: words of requests, of plans and of
    doubt; such a sentence is no evidence, whatever is in it.
    """

    hint: re.Pattern[str]
    rules: tuple[Rule, ...]
    topics: tuple[tuple[re.Pattern[str], str], ...]
    evidence: tuple[Evidence, ...]
    unsure: re.Pattern[str]


def case_insensitive(pattern: str) -> re.Pattern[str]:
    """Return a pattern that does not look at case."""
    return re.compile(pattern, re.IGNORECASE)


def rule(pattern: str, kind: FactKind, about: str, *, weak: bool = False) -> Rule:
    """Return a rule for sentences that have the pattern somewhere."""
    return Rule(case_insensitive(pattern), kind, about, weak)


def topics(*named: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return topics by the words that name them."""
    return tuple((case_insensitive(words), topic) for words, topic in named)


_FACT, _PREFERENCE, _ENTITY = FactKind.FACT, FactKind.PREFERENCE, FactKind.ENTITY

_EN_I = r"\b(?:i|we)(?:'ve| have)?(?: both| now| just| recently| finally| actually| really| also| still| only| usually| generally| normally| personally| absolutely| strongly)*"
_EN_AM = r"\b(?:i'm|i am|we're|we are|i've been|i have been)(?: actually| also| now| still| both| very| really| severely| badly| a bit| rather| basically)*"
_EN_NOT = r"(?: not| no longer| never)?"
_EN_IS = r"(?:'s| is| was| has changed to| changed to| is now| are| will be)"
_EN_NAME = r"(?P<name>(?-i:[A-Z])[\w'-]+)"
_EN_KIN = (
    r"(?:(?:older|younger|big|little|twin|late|best|good|old|new|eldest|oldest|youngest|middle|former|step|half|great|grand|god)[ -]?)*"
    r"(?:wife|husband|partner|spouse|fianc[eé]e?|girlfriend|boyfriend|mother|father|mum|mom|dad|parents|brother|sister|son|daughter"
    r"|child|kid|kids|twins|baby|cousin|aunt|uncle|niece|nephew|grand(?:ma|pa|mother|father|son|daughter)|(?:mother|father|sister|brother|son|daughter)-in-law"
    r"|friend|colleague|coworker|co-worker|roommate|flatmate|housemate|neighbour|neighbor|dog|cat|puppy|kitten|horse|parrot|hamster|rabbit)"
)
_EN_HELPER = r"(?P<role>boss|manager|supervisor|team lead|doctor|gp|dentist|therapist|physio|accountant|lawyer|landlord|landlady|tutor|coach|trainer|nanny|cleaner|hairdresser|vet|assistant|mentor)"
_EN_CODE = (
    r"(?P<what>(?:[a-z'-]+ ){0,3}?(?:number|code|pin|password|passcode|passphrase|id|username|user name|login|handle"
    r"|plate|account|iban|e-?mail(?: address)?|phone|mobile|address|postcode|zip(?: code)?|membership|licen[cs]e))"
)
_EN_BOOKING = r"(?:[a-z'-]+ ){0,3}?(?:reference|booking|confirmation|ticket|order|tracking|case|reservation|flight|parcel|claim)(?: (?:number|code|id|reference))?(?: for [a-z ]{2,24})?"
_EN_SIZE = r"(?P<what>(?:[a-z'-]+ ){0,2}?(?:rent|budget|salary|income|mortgage|deposit|pension|weight|height|size|shoe size|dose|dosage|blood type|age|waist|fee|allowance|target))"
_EN_DAY = r"(?P<what>(?:[a-z'-]+ ){0,3}?(?:birthday|anniversary|wedding|appointment|exam|deadline|interview|due date|graduation|surgery|operation|check-?up|lease|visa|passport|contract|probation|name day))"
_EN_FAVOURITE = r"(?P<what>favou?rite (?:[a-z'-]+ ?){1,3}?|(?:usual|default|preferred|go-to) (?:[a-z'-]+ ?){1,3}?|native language|mother tongue|first language|hometown|home town|time ?zone|home airport|local airport|star sign|religion|nationality|citizenship|job|profession|occupation|employer|company|school|university|major|hobby)"

_EN_NOT_A_THING = r"(?!(?:it|that|this|them|those|these|you|your|the idea|the sound|the look|how|what|when|where|to (?:book|know|see|ask|get|have|change|cancel|make|use|add|go ahead|proceed))\b)"

_EN_SPEAKER = case_insensitive(r"\b(?:i|i'm|i've|my|we|we're|we've|our|us|me|mine)\b")

ENGLISH: Final = Language(
    hint=case_insensitive(
        r"\b(?:i|i'm|i've|i'd|my|we|we're|we've|we'll|our|us|me|mine|always|never|stop|don't|do not|from now|from today|going forward|future|henceforth|reference"
        r"|booking|confirmation|ticket|order|tracking|case|reservation|flight|parcel|claim|she/her|he/him|they/them)\b"
    ),
    rules=(
        # Who they are.
        rule(
            rf"\bmy (?:full |first |last |middle |legal |real |sur)?name{_EN_IS} (?!not\b|on\b|in\b|spel|mis)\w",
            _FACT,
            "name",
        ),
        rule(
            r"\b(?:please |just |you can |everyone |people |friends |they )*calls? me (?!back\b|when\b|at\b|on\b|later\b|tomorrow\b|today\b|an?\b|the\b|in\b|as\b|for\b|crazy\b|if\b|or\b|and\b)\w",
            _FACT,
            "nickname",
        ),
        rule(r"\bi (?:now )?go by (?!the\b|bus|car|train|plane|bike|foot|boat)\w", _FACT, "nickname"),
        rule(r"\bmy pronouns\b|\b(?:she/her|he/him|they/them)\b", _FACT, "pronouns"),
        rule(
            rf"{_EN_AM}{_EN_NOT}(?: an?)?(?: strict)? (?:vegetarian|vegan|pescatarian|pescetarian|kosher|halal|teetotal)\b",
            _FACT,
            "diet",
        ),
        rule(
            rf"{_EN_I} (?:no longer |don'?t |do not |never |can'?t |cannot |gave up |given up )eat(?:ing)? (?:any )?(?P<what>[a-z]+(?: [a-z]+)?)\b",
            _FACT,
            "eat:{what}",
        ),
        rule(
            rf"{_EN_AM} (?:left|right)-handed\b|{_EN_AM} (?:ambidextrous|colou?r-?blind|deaf|hard of hearing|dyslexic|diabetic|asthmatic|pregnant|epileptic|near-?sighted|short-?sighted)\b",
            _FACT,
            "",
        ),
        rule(rf"{_EN_AM} \d{{1,3}}(?: years old|-year-old)\b", _FACT, "age"),
        rule(rf"{_EN_I} (?:no longer |don't )?work as\b|{_EN_AM} (?:working|employed) as\b", _FACT, "job"),
        rule(
            rf"{_EN_I} (?:no longer |don't )?work (?:for|at (?!home|night))\b|{_EN_AM} (?:working|employed) (?:for|at (?!home|night))\b",
            _FACT,
            "employer",
        ),
        rule(rf"{_EN_I} (?:teach|study) (?:as|at|for)?\b|{_EN_AM} studying\b", _FACT, ""),
        rule(
            rf"{_EN_AM} (?:an?|the) (?!bit\b|little\b|lot\b|few\b|fan\b|huge\b|big\b|while\b|mess\b|total\b|complete\b|new (?:customer|user)\b|one\b|only\b|same\b)(?:[\w-]+ ){{0,3}}[\w-]+(?:er|or|ist|ian|man|woman|ant|nurse|chef|cook|student|parent|mother|father|dad|mum|mom|member|person|citizen|resident|veteran|native|pilot|engineer|coach)\b",
            _FACT,
            "",
        ),
        rule(
            rf"{_EN_I} (?:speak|live (?:with|by|above|alone)|studied|majored in|trained as|was born|grew up|were born|were raised|was raised|play the|am fluent|graduated)\b|{_EN_AM} (?:fluent in|from (?-i:[A-Z])|originally from|married|divorced|single|widowed|engaged to|retired|self-employed|unemployed)\b",
            _FACT,
            "",
        ),
        # Where they are.
        rule(
            rf"{_EN_I} (?:no longer |don't )?(?:live|reside) (?:in|at|on|near|outside)\b(?! (?:my|peace|hope))|{_EN_AM} (?:now )?(?:living|based|residing) (?:in|at|on|near)\b",
            _FACT,
            "home",
        ),
        rule(
            r"\b(?:i|we)(?:'ve| have)?(?: just| recently| finally| now| actually)* (?:moved|relocated) (?:house|home|flat|back|out|from|to|into|in with)\b(?! (?:the (?:meeting|call|date|appointment)))",
            _FACT,
            "home",
        ),
        rule(r"\bmy (?:home |postal |mailing |new |current )*address(?:'s| is)\b", _FACT, "address"),
        # What they can't have or do.
        rule(
            rf"(?:{_EN_AM}|\bi was){_EN_NOT}(?: terribly| deathly| highly| mildly)? (?:allergic|intolerant) (?:to|of) (?P<items>[^.,;!?]+)",
            _FACT,
            "allergy:{items}",
        ),
        rule(
            rf"{_EN_I} (?:have|got|suffer from|developed)(?: an?| a severe| a bad)? (?P<items>[\w-]+(?: [\w-]+)?) (?:allergy|intolerance)\b",
            _FACT,
            "allergy:{items}",
        ),
        rule(rf"{_EN_AM}{_EN_NOT} (?P<items>[\w-]+)[ -](?:intolerant|free)\b", _FACT, "allergy:{items}"),
        rule(
            rf"{_EN_I} (?:can'?t|cannot|can not|mustn'?t|must not|may not|can never|can only|am not allowed to|shouldn't) (?!wait\b|help\b|thank\b|see\b|find\b|remember\b|tell\b|believe\b|imagine\b|say\b|afford to wait|seem\b|log\b|access\b|get in|recall\b|provide\b|figure\b|do that\b|do this\b|make it\b|use\b|open\b|cancel\b|change\b|book\b)(?:eat|drink|have|take|lift|do|fly|drive|run|walk|climb|work|attend|meet|sleep|tolerate|digest|travel|be|go|concentrate|touch|wear)\b",
            _FACT,
            "",
        ),
        rule(
            rf"{_EN_AM} (?:not supposed|not allowed|not permitted|forbidden|banned|afraid of|scared of|terrified of)\b",
            _FACT,
            "",
        ),
        rule(
            rf"{_EN_I}(?:'m| am|'re| are)? (?:keep|keeping|left|put|hid|hide|parked|buried|stored|stashed|store) (?:my |our |the |it |a |an )?[^.;]{{0,40}}?\b(?:in|on|under|behind|inside|at|with|next to|beside|above|below)\b (?!mind|touch|hold|time|case)",
            _ENTITY,
            "",
            weak=True,
        ),
        # Whom they know.
        rule(
            rf"\bmy (?P<what>{_EN_KIN}) ?(?:(?:'s| is) (?:name is |called |named )?|'s name is |are (?:called |named )?){_EN_NAME}\b",
            _ENTITY,
            "my:{what}:{name}",
        ),
        rule(rf"\b(?:my|our) {_EN_KIN},? {_EN_NAME}\b", _ENTITY, "", weak=True),
        rule(
            rf"\b(?:my|our)(?: new)? {_EN_HELPER}(?:'s name)?(?:,| is(?: now)?(?: called| named)?|'s(?: called| named)?)? (?:dr\.? |mr\.? |mrs\.? |ms\.? )?{_EN_NAME}\b",
            _ENTITY,
            "{role}",
        ),
        rule(
            r"\b(?:we|i)(?:'ve| have)? (?:have|got|adopted|have adopted|own) (?:an?|\d|two|three|four|five) (?:[\w-]+ )?(?:kids?|children|sons?|daughters?|dogs?|cats?|brothers?|sisters?|siblings|grandchildren|twins|horses?)\b",
            _FACT,
            "",
        ),
        # Days, identifiers, amounts.
        rule(
            rf"\bmy {_EN_DAY}(?:'s| is| are| was moved to| has moved to| moved to| expires| ends| runs out)(?: now)?(?: on| at| in| until| up on)? (?=.*(?:\d|january|february|march|april|may|june|july|august|september|october|november|december|monday|tuesday|wednesday|thursday|friday|saturday|sunday|tomorrow))",
            _FACT,
            "date:{what}",
        ),
        rule(r"\bi was born (?:on|in)\b", _FACT, "birthday"),
        rule(rf"\b(?:my|the|our) {_EN_BOOKING}(?:{_EN_IS}|:) ?(?:\#)?(?=\S*\d|(?-i:[A-Z0-9]{{5,}}))", _ENTITY, ""),
        rule(rf"\b(?:my|our)(?: new)? {_EN_CODE}(?:{_EN_IS}|:) ?(?=\S*[\d@-]|\S+$)", _ENTITY, "id:{what}"),
        rule(
            rf"\b(?:my|our) {_EN_SIZE}(?:{_EN_IS}| went up to| went down to| is going up to| is only) (?=.*(?:\d|positive|negative|small|medium|large))",
            _FACT,
            "amount:{what}",
        ),
        rule(rf"\bmy {_EN_FAVOURITE}(?:'s| is| has changed to| are) (?!not\b|unknown)\S", _PREFERENCE, "my:{what}"),
        # What was decided.
        rule(
            rf"{_EN_I} (?:decided|settled on|settled for|agreed (?:to|on|that)|chose|have chosen|chosen|picked|opted|went with|ended up (?:with|choosing)|signed (?:up )?(?:with|for)|switched (?:to|from)|made up (?:my|our) mind)\b",
            _FACT,
            "",
        ),
        rule(
            r"\b(?:we're|we are|i'm|i am) (?:going|sticking|staying) with\b|\b(?:we'll|we will) (?:go|stick|stay) with\b|\bi(?:'ve| have) changed my mind\b",
            _FACT,
            "",
        ),
        # What they like.
        rule(r"\b(?:from now on|from today(?: on)?|going forward|in (?:the )?future|henceforth)\b", _PREFERENCE, "*"),
        rule(
            rf"{_EN_I} (?:now |no longer |would always |always |much |used to )*prefer\b(?! not to (?:say|be transferred))",
            _PREFERENCE,
            "*",
        ),
        rule(r"\bi(?:'d| would) (?:always|rather always|much rather)\b", _PREFERENCE, "*"),
        rule(
            rf"{_EN_I} (?:like|love|enjoy|adore|fancy)(?: very much)? {_EN_NOT_A_THING}(?P<taste>[^.,;!?]+)",
            _PREFERENCE,
            "*taste:{taste}",
        ),
        rule(
            rf"{_EN_I} (?:don'?t|do not|no longer|never) (?:like|love|enjoy|adore|fancy) {_EN_NOT_A_THING}(?P<taste>[^.,;!?]+)",
            _PREFERENCE,
            "taste:{taste}",
        ),
        rule(
            rf"{_EN_I} (?:hate|dislike|detest|loathe|despise|can'?t stand|cannot stand|can'?t bear|avoid|don'?t care for|am not a fan of) {_EN_NOT_A_THING}(?P<taste>[^.,;!?]+)",
            _PREFERENCE,
            "taste:{taste}",
        ),
        rule(
            rf"{_EN_AM}{_EN_NOT} (?:an? )?(?:huge |big |great )?(?:fan of|fond of|keen on|into|crazy about|obsessed with|partial to|off) {_EN_NOT_A_THING}(?P<taste>[^.,;!?]+)",
            _PREFERENCE,
            "taste:{taste}",
        ),
        rule(
            r"\b(?:i|we)(?:'ve| have)? gone off (?P<taste>[^.,;!?]+)|\bi no longer (?:drink|smoke|use) (?P<was>[^.,;!?]+)",
            _PREFERENCE,
            "taste:{taste}",
        ),
        rule(
            rf"{_EN_I} (?:always|never|only ever|only|usually|rarely|seldom) (?!had|have (?:had|been|seen)|received|got|been|want to|need|thought|said|asked|heard|see\b|saw|wanted|made|meant|agreed|expected|knew|can\b)[a-z]+\b",
            _PREFERENCE,
            "*",
        ),
        rule(
            r"\bi (?:don'?t|do not) (?:eat|drink|smoke|drive|fly|touch|do|wear|use|want any|take|watch|celebrate|read) \w",
            _PREFERENCE,
            "*",
        ),
        rule(
            r"^(?:please |and |so |ok |okay )*(?:always|never) [a-z]+\b.*\b(?:me|my|i|us)\b|\b(?:give|get|put|send|book|seat|show|tell) me\b.*\b(?:always|every time|each time|whenever|by default)\b",
            _PREFERENCE,
            "*",
        ),
        rule(
            r"^(?:please |and )*(?:stop|don't|do not|never) (?:suggest|recommend|send|call|use|book|seat|put|offer|giv|show|includ|schedul)\w*\b",
            _PREFERENCE,
            "*",
        ),
        rule(
            r"\bit's always\b.*\bfor me\b|\bfor me,? it's always\b|\b(?:usual|same as ever) for me\b|\bi'm an? [\w-]+[ -](?:person|lover|type)\b|\bno [\w ]+ for me\b",
            _PREFERENCE,
            "*",
        ),
        rule(
            r"\b(?:tastes?|smells?|feels?|means?|sounds?) (?:like [\w ]+|nothing|awful|terrible|wrong) to me\b",
            _PREFERENCE,
            "",
        ),
    ),
    topics=topics(
        (r"\b(?:window|aisle) seats?\b|\b(?:on|by|at|near) the (?:window|aisle)\b|\baisle\b", "seat"),
        (r"\b(?:dark|light) (?:mode|theme)s?\b", "theme"),
        (r"\b(?:tabs|spaces)\b", "indent"),
        (r"\b(?:metric|imperial|celsius|fahrenheit)\b", "units"),
        (
            r"\b(?:answer|reply|write|speak)\w*\b.* in (?:english|japanese|chinese|german|french|spanish|italian|portuguese|korean|dutch)\b",
            "language",
        ),
        (r"\b(?:economy|business class|first class)\b", "cabin"),
    ),
    evidence=(
        Evidence(
            _EN_SPEAKER,
            case_insensitive(
                r"\b(?:january|february|march|april|june|july|august|september|october|november|december)\s+\d{1,2}\b"
                r"|\b\d{1,2}(?:st|nd|rd|th)?(?: of)? (?:january|february|march|april|may|june|july|august|september|october|november|december)\b"
                r"|\b(?:january|february|march|april|may|june|july|august|september|october|november|december) \d{4}\b"
                r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day (?:the \d|at \d)|\bthe \d{1,2}(?:st|nd|rd|th)\b"
            ),
            _FACT,
        ),
        Evidence(
            _EN_SPEAKER,
            case_insensitive(
                r"[$€£¥]\s?\d|\b\d[\d,.]*\s?(?:euros?|dollars?|pounds?|quid|yen|yuan|crowns?|francs?|%|percent|kg|kilos?|grams?|mg|micrograms?|km|kilomet\w+|miles|litres?|liters?"
                r"|cm|met(?:re|er)s|units|people|guests|minutes|hours|nights|days|weeks|months|years|slides|gigs|kilowatt)\b"
                r"|\b\d{1,3}(?:,\d{3})+\b|\b\d+\.\d+\b"
            ),
            _FACT,
        ),
        Evidence(
            _EN_SPEAKER,
            case_insensitive(
                r"(?-i:\b(?:in|at|near|for|with|from|to|under|called|named) (?:the )?[A-Z][a-zà-ÿ]{2,})|(?-i:\b(?=[A-Z0-9-]*\d)(?=[A-Z0-9-]*[A-Z-])[A-Z0-9]+(?:-[A-Z0-9]+)*\b(?<=.{5})|\b[A-Z]{2,} \d[\d ]{2,}\b|\b\d{2,}-\d{2,}[\d-]*\b)|\b[\w.+-]+@[\w-]+\.\w"
            ),
            _ENTITY,
        ),
    ),
    unsure=case_insensitive(
        r"\b(?:want|wanted|need|needs|would like|i'd|we'd|looking (?:for|to|into)|trying|hope|hoping|think|thought|guess|wonder|wondering|wish|see|understand|check|checking"
        r"|let me|let's|thanks?|appreciate|might|may be|maybe|perhaps|probably|could|would|should|please|book|cancel|change|upgrade|refund|search|find|assist\w*|confirm|proceed"
        r"|i'll|we'll|is there|are there|go ahead|option|not sure|forgot|remind|willing|considering|planning|prefer not|sounds|sorry|hello|hi)\b"
    ),
)


_JA_KIN = (
    r"(?:義理の)?(?:妻|嫁|夫|旦那|主人|家内|彼女|彼氏|婚約者|父|母|両親|兄|弟|姉|妹|息子|娘|長男|次男|三男|長女|次女|三女|末っ子|祖父|祖母|孫|甥|姪|叔父|叔母|伯父|伯母"
    r"|いとこ|従兄|従妹|従弟|従姉|友人|友達|友だち|親友|同僚|後輩|先輩|犬|猫|愛犬|愛猫|ペット)"
)
_JA_HELPER = r"(?P<role>上司|部長|課長|店長|担任|主治医|税理士|弁護士|大家|家庭教師|コーチ|かかりつけ)"
_JA_THING = r"(?P<taste>[^、。はがもを\s]{1,20})"
_JA_DIGITS = r"[0-9０-９〇一二三四五六七八九十百千]"
_JA_DAY = rf"(?:{_JA_DIGITS}{{1,4}}年{_JA_DIGITS}{{1,2}}月|{_JA_DIGITS}{{1,3}}月{_JA_DIGITS}{{1,3}}日|{_JA_DIGITS}{{1,3}}月の?第[一二三四五1-5][月火水木金土日]曜|[月火水木金土日]曜日?の?{_JA_DIGITS}{{1,2}}時)"
_JA_CODE = r"(?P<what>[^、。はがもを\s]{0,12}(?:番号|暗証|暗証番号|パスワード|コード|アカウント|メールアドレス|メアド|住所|郵便番号|ナンバー|合言葉|ID|WiFi))"

JAPANESE: Final = Language(
    hint=case_insensitive(r""),
    rules=(
        rule(
            r"(?:私|僕|俺|わたし|自分)?の?(?:名前|本名|氏名|苗字|名字|旧姓)は.{1,20}(?:です|だ|と(?:申|言|い)|。|$)",
            _FACT,
            "name",
        ),
        rule(r"(?:私|僕|俺|わたし)?は?[^、。]{1,16}と(?:申します|いいます|言います)", _FACT, "name"),
        rule(r"[^、。]{1,16}(?:と|って)呼んで(?!もら|くれな)", _FACT, "nickname"),
        rule(r"(?:私|僕|俺|わたし|自分)は[^、。]{0,12}(?:ベジタリアン|ヴィーガン|ビーガン|菜食)", _FACT, "diet"),
        rule(r"(?P<what>[^、。はがもを\s]{1,10})は(?:もう)?(?:食べません|食べない|食べられ)", _FACT, "eat:{what}"),
        rule(
            r"(?:左利き|右利き|色弱|色覚|近視|難聴|妊娠中|糖尿病|喘息|高血圧|乾燥肌|独身|既婚)(?:です|なん|で、|なので|だ|の)",
            _FACT,
            "",
        ),
        rule(r"(?:血液型|年齢|身長|体重|靴のサイズ|出身|国籍|母国語|趣味|星座|干支)は", _FACT, ""),
        rule(r"(?:として働い|の仕事をし)|(?:本業|職業)は", _FACT, "job"),
        rule(r"(?:に勤め|で働い|に勤務し|で勤務し|に就職し|に転職し)|(?:勤め先|勤務先)は", _FACT, "employer"),
        rule(
            r"(?:私|僕|俺|わたし)は[^、。]{1,16}(?:師|家|者|員|医|生|人|士|屋|手|マン|エンジニア|デザイナー)(?:です|だ|なん|をして)",
            _FACT,
            "",
        ),
        rule(
            r"[^、。]{1,16}(?:に|で)(?:住んで|暮らして|在住)|[^、。]{1,16}(?:へ|に)(?:引っ越し|引越し|移住|転居|移り住)(?!たい)",
            _FACT,
            "home",
        ),
        rule(r"[^、。]{1,16}(?:で|に)(?:生まれ|育ち|育った|生まれ育)|[^、。]{1,12}出身", _FACT, "origin"),
        rule(r"(?P<items>[^、。\s]{1,20}?)(?:に対する|の)?アレルギー(?!.*(?:教えて|ですか))", _FACT, "allergy:{items}"),
        rule(
            r"(?P<items>[^、。はがも\s]{1,16})(?:は|が|も)?(?:食べられない|食べられません|飲めない|飲めません|受け付けない|受けつけない|体に合わない|NG)",
            _FACT,
            "allergy:{items}",
        ),
        rule(
            r"(?:医者|医師|先生|病院|主治医)(?:に|から)[^。]{0,24}(?:止められ|禁止|控え|言われ)|(?:禁止され|ドクターストップ|我慢(?:な|し)|控えてい|控えるよう|規約で|までしか|入れないで|無理です|できません)",
            _FACT,
            "",
        ),
        rule(
            rf"{_JA_KIN}の(?:名前は|)(?P<name>[^、。はがもをにとの\s]{{1,10}})(?:が|は|と|も|に|を|の|、|です|といい)",
            _ENTITY,
            "",
        ),
        rule(
            rf"{_JA_KIN}は(?P<name>[^、。はがもをに\s]{{1,10}})(?:といい|と言い|という名|って名|ちゃん|くん|君)",
            _ENTITY,
            "",
        ),
        rule(
            rf"{_JA_HELPER}(?:さん|の先生)?(?:は|の|が)(?P<name>[^、。はがもを\s]{{1,8}})(?:さん|先生|氏|部長|課長)",
            _ENTITY,
            "{role}",
        ),
        rule(rf"(?:誕生日|生年月日)は|{_JA_DAY}生まれ", _FACT, "birthday"),
        rule(r"(?:結婚記念日|記念日)は", _FACT, "anniversary"),
        rule(rf"{_JA_CODE}(?:は|を|が|、)[^。]{{0,20}}[0-9０-９A-Za-z@-]{{3,}}", _ENTITY, "id:{what}"),
        rule(
            r"(?P<what>家賃|予算|給料|年収|月収|手取り|貯金|会費|月謝|ローン)(?:は|が)[^。]{0,20}[0-9０-９〇一二三四五六七八九十百千万]",
            _FACT,
            "amount:{what}",
        ),
        rule(
            r"(?:こと)?に(?:決めました|決めた|決まりました|決まった|決定し)|ことに(?:しました|した|なりました|なった|します)|で行く(?:こと|そう|事)|に(?:変え|変更し|乗り換え|切り替え|変え直)(?:ました|た)|に(?:しました|したよ)(?:。|$|！)",
            _FACT,
            "",
        ),
        rule(r"(?:今後|これから|これからは|次から|次回から|以後|今日から)(?:は|も)?[^。]{2,}", _PREFERENCE, "*"),
        rule(
            rf"{_JA_THING}(?:の方|のほう|派|だけ|さえ)?(?:が|は|も|なら)(?:一番|とても|すごく|大変|本当に|実は|もう|あまり|特に)?(?:大好き|好き|好物|好み|お気に入り)(?!な(?:人|方)|そう|か|では|じゃ)",
            _PREFERENCE,
            "*taste:{taste}",
        ),
        rule(
            rf"{_JA_THING}(?:が|は|も)(?:とても|すごく|本当に|実は|もう|あまり|特に)?(?:苦手|嫌い|大嫌い|無理|ダメ|だめ|好きでは|好きじゃ)(?!な(?:人|方)|そう|か)",
            _PREFERENCE,
            "taste:{taste}",
        ),
        rule(
            r"(?:の方|のほう)が(?:好き|いい|良い|助かる|落ち着)|(?:派|一択)(?:です|だ|なん|。|$)|に限る|じゃないと|でないと|しか(?:飲ま|食べ|使わ|勝た|乗ら)",
            _PREFERENCE,
            "*",
        ),
        rule(
            r"[^。]{2,}が(?:いい|良い)(?:です|な|んで|。|$)(?!か)|(?:必ず|いつも|毎回|絶対に?|なるべく)[^。]{2,}(?:して|取って|にして|予約して|ください|ます|です|てね|ないで)",
            _PREFERENCE,
            "*",
        ),
        rule(
            r"[^。]{2,}(?:しないで|ないでください|ないでね|はやめて|は避けて|は控えて|たくない|はいりません|は要りません|は使いません|は飲みません)",
            _PREFERENCE,
            "*",
        ),
    ),
    topics=topics(
        (r"窓側|窓際|通路側|[A-F]席", "seat"),
        (r"ダークモード|ライトモード", "theme"),
        (r"(?:英語|日本語|中国語)で(?:答|返|書|話)", "language"),
    ),
    evidence=(
        Evidence(case_insensitive(r""), case_insensitive(_JA_DAY), _FACT),
        Evidence(
            case_insensitive(r""),
            case_insensitive(
                rf"{_JA_DIGITS}[{_JA_DIGITS[1:-1]},，.万億]*(?:円|万円|キロ|グラム|リットル|パーセント|%|メートル|センチ|ミリ|時間|分まで|人前|名様|度|冊|件|歳|年間)"
            ),
            _FACT,
        ),
        Evidence(
            case_insensitive(r""),
            case_insensitive(
                r"(?<![A-Za-z0-9])(?=[A-Za-z0-9-]*[0-9])(?=[A-Za-z0-9-]*[A-Za-z-])[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*(?<=.{5})(?![A-Za-z0-9])"
            ),
            _ENTITY,
        ),
    ),
    unsure=case_insensitive(
        r"たい(?:です|の|。|$|と思)|ください|下さい|お願い|ほしい|欲しい|もらえ|いただけ|くれ(?:る|ない)|かもしれ|だろう|でしょう|と思(?:う|い)|予定|つもり"
        r"|探して|調べて|予約して|教えて|確認|キャンセル|変更して|検索|して$|して。|てね$|てよ$"
    ),
)


_ZH_KIN = (
    r"(?:老婆|老公|妻子|丈夫|太太|先生|爱人|愛人|男朋友|女朋友|男友|女友|未婚妻|未婚夫|爸爸|妈妈|爸|妈|媽媽|媽|父亲|母亲|父親|母親|爷爷|奶奶|外公|外婆|姥姥|姥爷|哥哥|弟弟|姐姐|妹妹|哥|弟|姐|妹"
    r"|儿子|女儿|兒子|女兒|老大|老二|孙子|孙女|表哥|表姐|表弟|表妹|堂哥|堂姐|堂弟|堂妹|舅舅|阿姨|姑姑|叔叔|侄子|侄女|外甥|嫂子|婆婆|公公|岳母|岳父|同事|同学|闺蜜|朋友|室友|邻居|狗|猫)"
)
_ZH_HELPER = r"(?P<role>老板|上司|领导|经理|主管|班主任|教练|医生|牙医|律师|会计|房东|房東|保姆|阿姨|甲方|导师)"
_ZH_THING = r"(?P<taste>[^，。、！；\s]{1,20})"
_ZH_DIGITS = r"[0-9０-９零〇一二三四五六七八九十百两]"
_ZH_DAY = rf"(?:{_ZH_DIGITS}{{1,4}}年{_ZH_DIGITS}{{1,3}}月|(?:{_ZH_DIGITS}{{1,3}}|正|腊|冬)月(?:初)?{_ZH_DIGITS}{{1,3}}[号號日]?|{_ZH_DIGITS}{{1,3}}[号號](?![线楼院])|(?:周|星期|礼拜|禮拜)[一二三四五六日天])"
_ZH_CODE = r"(?P<what>[^，。、我的\s]{0,8}(?:号码|號碼|密码|密碼|编号|編號|单号|單號|学号|工号|账号|帳號|卡号|车牌|邮箱|郵箱|电话|電話|手机号|地址|微信号|口令|验证码|会员号|订单号))"

CHINESE: Final = Language(
    hint=case_insensitive(r""),
    rules=(
        rule(r"我(?:的)?(?:名字|本名|真名|全名)(?:是|叫)|我叫(?!他|她|它|你|人|了|个|車|车|外卖|的)", _FACT, "name"),
        rule(r"(?:叫我|称呼我|稱呼我|喊我)(?!去|来|帮|怎么|干|做|起|吃)\S", _FACT, "nickname"),
        rule(r"我(?:现在|已经|是)?(?:不)?(?:吃素|素食|是素食主义者)", _FACT, "diet"),
        rule(r"我(?:不再|再也不|不|从不|從不)吃(?P<what>[^，。、！了的\s]{1,6})", _FACT, "eat:{what}"),
        rule(
            r"我(?:是|有|属|屬)(?:个|一个|一名|一位)?(?:左撇子|右撇子|色弱|色盲|近视|近視|糖尿病|高血压|哮喘|孕妇|单身|已婚|[鼠牛虎兔龙蛇马羊猴鸡狗猪](?:的|，|。|$))",
            _FACT,
            "",
        ),
        rule(r"我(?:今年)?(?P<age>[0-9一二三四五六七八九十]{1,3})岁", _FACT, "age"),
        rule(
            r"我(?:现在|目前)?(?:在|于)[^，。]{1,16}(?:工作|上班|任职|任職)|我(?:的)?(?:公司|单位)(?:是|在)",
            _FACT,
            "employer",
        ),
        rule(r"我(?:的)?(?:工作|职业|職業|本职)是", _FACT, "job"),
        rule(r"我(?:现在|目前)?在[^，。]{1,16}(?:读书|上学|念书|教书)", _FACT, ""),
        rule(
            r"我是(?:一个|一名|一位|个|做|学|搞)?(?!说|想|觉得|不是|要|来|在|问|打算|为了|真|很|用|先)[^，。]{1,12}(?:师|員|员|医生|護士|护士|学生|工程师|设计师|律师|的|人|家|者|生|兵)(?:，|。|$)",
            _FACT,
            "",
        ),
        rule(r"我(?:小时候|小時候|大学|从小|會說|会说|会讲|毕业于|畢業於|练过|学过|在[^，。]{1,10}长大)", _FACT, ""),
        rule(
            r"我(?:们|們|家)?(?:现在|目前|一直|還|还|已经)?(?:住在|住|定居在|搬到|搬去|搬进|搬回|搬来)(?!院|酒店|宾馆|不)\S|我(?:们|家)?(?:刚|最近|上个月|上周|已经)?搬家(?:了|到)",
            _FACT,
            "home",
        ),
        rule(r"我(?:是|来自)[^，。]{1,10}人(?:，|。|$)|我(?:老家|家乡|出生)(?:在|是|于)", _FACT, "origin"),
        rule(
            r"(?:我|孩子|女儿|儿子)?(?:现在|已经)?(?:不|不再)?对(?P<items>[^，。]{1,20}?)(?:严重|重度|轻微|都|也|有点|不再|不)?过敏|對(?P<too>[^，。]{1,20}?)過敏",
            _FACT,
            "allergy:{items}",
        ),
        rule(
            r"我(?:不能|不可以|不准|不可|没法|沒法|不得)(?:再)?(?:吃|喝|碰|沾|提|跑|开车|坐|熬夜|喝酒|抽烟|穿|用|见|吹)",
            _FACT,
            "",
        ),
        rule(
            r"(?:医生|大夫|医嘱|醫生|学校|公司|法务|领导|物业)[^。]{0,8}(?:规定|说了?不|让我|不让|要求|叮嘱|不许|禁止)|只能(?:带|住|吃|喝|坐|挑|选|用|走)|最多(?:只)?(?:能|可以|带)|不得超过",
            _FACT,
            "",
        ),
        rule(rf"我(?:的|家)?{_ZH_KIN}(?:叫|名叫|名字叫|名字是)", _ENTITY, ""),
        rule(
            rf"(?:我|咱|俺)(?:的|家)?{_ZH_KIN}(?P<name>[小阿老][\u4e00-\u9fff]{{1,2}}|[\u4e00-\u9fff]{{2,3}}?)(?=是|在|要|下周|明天|今天|说|来|会|有|也|昨天|最近|其实)",
            _ENTITY,
            "",
        ),
        rule(rf"^{_ZH_KIN}(?P<name>[小阿老][\u4e00-\u9fff]{{1,2}})", _ENTITY, ""),
        rule(rf"(?:我|我们|我們)(?:的)?(?:新)?{_ZH_HELPER}(?:叫|是|换成(?:了)?|改成|姓)", _ENTITY, "{role}"),
        rule(r"(?:我|我的)生日(?:是|在|：)|我(?:是)?[^，。]{1,12}(?:出生|生的)", _FACT, "birthday"),
        rule(r"(?:结婚|結婚)?(?:纪念日|紀念日)(?:是|在)", _FACT, "anniversary"),
        rule(
            rf"{_ZH_CODE}(?:是|为|：|:|改成|改为|换成|變成)?\s*[^，。]{{0,8}}[0-9A-Za-z@-]{{3,}}", _ENTITY, "id:{what}"
        ),
        rule(
            r"我(?:的|们的)?(?P<what>房租|预算|預算|工资|月薪|年薪|存款|房贷|首付|体重|身高|鞋码|血压)(?:是|现在|涨到|降到|只有|有)?[^，。]{0,6}[0-9一二三四五六七八九十百千万两]",
            _FACT,
            "amount:{what}",
        ),
        rule(
            r"(?:我|我们|我們|咱们|大家|家里|公司|组里|商量)[^。]{0,12}(?:决定|決定|定下|商量好|选了|選了|敲定|拍板|投票|改主意)|(?:就叫|改成|换成|換成|改用|改到|改去|定在|定为)(?!不|什么)\S|(?:拍板|敲定|定下来)",
            _FACT,
            "",
        ),
        rule(r"(?:以后|以後|今后|今後|从今天起|從今天起|往后|下次起)[^。]{2,}", _PREFERENCE, "*"),
        rule(
            rf"我(?:们)?(?:现在|一直|还是|從來|从来|特别|特別|最|很|比较|更|真的|其实|都|也)*(?:喜欢|喜歡|爱吃|爱喝|愛吃|愛喝|爱|偏爱|热爱|钟爱)(?!的|你|上了?你|这个|那个){_ZH_THING}",
            _PREFERENCE,
            "*taste:{taste}",
        ),
        rule(
            rf"我(?:们)?(?:现在|最|很|特别|一直|真的|实在|就|从来|從來|都|也)*(?:不(?:再|太|大)?喜欢|不(?:再)?喜歡|讨厌|討厭|受不了|受不住|不爱|不愛|嫌弃|害怕|怕|反感|不能忍){_ZH_THING}",
            _PREFERENCE,
            "taste:{taste}",
        ),
        rule(
            r"我(?:坐|吃|喝|住|买|看|订|选|用|只|一般|通常|总是|總是|从来|從來|从不|從不|向来|习惯|習慣|宁愿|寧願|更愿意|一律|都)[^。]{0,12}(?:只要|只吃|只喝|只坐|只认|只用|只看|只穿|一定要|必须|要靠|都要|选|坐|不|用|先|喝|吃|看|起)",
            _PREFERENCE,
            "*",
        ),
        rule(
            r"我(?:只要|只吃|只喝|只坐|只认|只用|只看|只穿|一定要|必须要)|(?:别|不要|不用|不許|不许)(?:再)?(?:给我|叫我|帮我|跟我)[^。]+|给我留[^。]+就行",
            _PREFERENCE,
            "*",
        ),
        rule(r"(?:请|請|麻烦)[^。]{0,12}(?:一律|都|总是|每次|以后)[^。]+", _PREFERENCE, "*"),
    ),
    topics=topics(
        (r"靠窗|靠过道|靠過道|靠走道", "seat"),
        (r"(?:深色|暗色|浅色)(?:模式|主题)", "theme"),
        (r"用(?:英文|中文|日文|英语|汉语)(?:回|写|说|跟)", "language"),
    ),
    evidence=(
        Evidence(case_insensitive(r""), case_insensitive(_ZH_DAY), _FACT),
        Evidence(
            case_insensitive(r"我|咱|家|给|女儿|儿子|爸|妈|公司|这个月|今年"),
            case_insensitive(
                r"[0-9〇零一二三四五六七八九十百千万两][0-9,.〇零一二三四五六七八九十百千万两点]*(?:元|块|塊|万|萬|公斤|斤|公里|升|岁|歲|平米|度|百分|千米|个工作日|小时|个人)|[一二三四五六七八九]百[一二三四五六七八九]|[十一二三四五六七八九]万[一二三四五六七八九]"
            ),
            _FACT,
        ),
        Evidence(
            case_insensitive(r""),
            case_insensitive(
                r"(?<![A-Za-z0-9])(?=[A-Za-z0-9-]*[0-9])(?=[A-Za-z0-9-]*[A-Za-z-])[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*(?<=.{5})(?![A-Za-z0-9])"
            ),
            _ENTITY,
        ),
    ),
    unsure=case_insensitive(
        r"想(?:要|订|訂|去|买|查|问|知道|预订)|请(?:帮|给|查|订|问)|請(?:幫|給)|帮我|幫我|麻烦|可以|能不能|能否|可能|也许|大概|好像|应该|應該|打算|考虑|查一下|预订|取消|搜索|告诉我|谢谢|謝謝"
    ),
)
