"""Rules for English: what speakers state about themselves."""

from __future__ import annotations

from typing import Final

from limpet.core.values.memory_records import FactKind
from limpet.memory.facts.patterns import Evidence, Language, case_insensitive, rule, topics

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
        rule(
            r"\bi (?:now )?go by (?!the\b|bus|car|train|plane|bike|foot|boat)\w", _FACT, "nickname"
        ),
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
        rule(
            rf"{_EN_I} (?:no longer |don't )?work as\b|{_EN_AM} (?:working|employed) as\b",
            _FACT,
            "job",
        ),
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
        rule(
            r"\bmy (?:home |postal |mailing |new |current )*address(?:'s| is)\b", _FACT, "address"
        ),
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
        rule(
            rf"{_EN_AM}{_EN_NOT} (?P<items>[\w-]+)[ -](?:intolerant|free)\b",
            _FACT,
            "allergy:{items}",
        ),
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
        rule(
            rf"\b(?:my|the|our) {_EN_BOOKING}(?:{_EN_IS}|:) ?(?:\#)?(?=\S*\d|(?-i:[A-Z0-9]{{5,}}))",
            _ENTITY,
            "",
        ),
        rule(
            rf"\b(?:my|our)(?: new)? {_EN_CODE}(?:{_EN_IS}|:) ?(?=\S*[\d@-]|\S+$)",
            _ENTITY,
            "id:{what}",
        ),
        rule(
            rf"\b(?:my|our) {_EN_SIZE}(?:{_EN_IS}| went up to| went down to| is going up to| is only) (?=.*(?:\d|positive|negative|small|medium|large))",
            _FACT,
            "amount:{what}",
        ),
        rule(
            rf"\bmy {_EN_FAVOURITE}(?:'s| is| has changed to| are) (?!not\b|unknown)\S",
            _PREFERENCE,
            "my:{what}",
        ),
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
        rule(
            r"\b(?:from now on|from today(?: on)?|going forward|in (?:the )?future|henceforth)\b",
            _PREFERENCE,
            "*",
        ),
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
        (
            r"\b(?:window|aisle) seats?\b|\b(?:on|by|at|near) the (?:window|aisle)\b|\baisle\b",
            "seat",
        ),
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
                r"(?-i:\b(?:in|at|near|for|with|from|to|under|called|named) (?:the )?[A-Z][a-zà-ÿ]{2,})|(?-i:\b(?=[A-Z0-9-]*\d)(?=[A-Z0-9-]*[A-Z-])[A-Z0-9]+(?:-[A-Z0-9]+)*\b(?<=.{5})|\b[A-Z]{2,} \d[\d ]{2,}\b|\b\d{2,}-\d{2,}[\d-]*\b)|\b[\w.+-]+@[\w-]+\.\w",
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
