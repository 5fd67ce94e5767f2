"""Token estimates for models whose tokenizer is not public.

Claude: the o200k count of each script, times the ratio of Anthropic's last published tokenizer. `estimate_tokens` needs
no vocabulary: it splits text into runs of words, digits, punctuation and white space, and each run has a cost by its
script and length. The costs are fitted to o200k.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import filterfalse
from typing import Final

from limpet import limits


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SINGLE_TOKEN_WORDS: Final = _words("""
и в не на он с что по это она но мы из за от так для все то если при или как был быть может будет было уже только
очень после есть их его до когда этот где время можно нет надо день год удалось файл ошибка файла имя значение данных
Не нельзя использовать тип невозможно строки каталог слишком размер должен создать существует является файлов символ
код содержит записи ключ без требуется функции типа пользователя удалить инструкции список показать используется
данные ли Если открыть версии должно имеет номер число формат параметры памяти раздел запись строк времени режим вне
получить доступа выполнить значения индекс Для во должны και το να του της με που την από για είναι τον θα τα στο δεν
οι σε στην των μια ένα τους αυτό αλλά όταν πολύ μόνο μας ότι έχει πρέπει μπορεί ως κατά αν χωρίς μετά πριν όπως στη
τις ήταν μη Το τη Αν Δεν υπάρχει στον χρήση δυνατό σας προς μία αυτή ενός βάση μην πάνω ήδη όχι Τα γίνει Οι Να
κατάσταση μεταξύ ομάδα Αυτό τέλος δε νέα νέο στα γίνεται δύο μέσα στις κάτω μιας έναν έχουν θέση χώρο συνέχεια αντί
όπου μπορούν βρίσκεται όλα في من على إلى أن هذا هذه التي الذي كان مع عن لا ما كل بعد قبل قد هو هي بين عند ثم أو لم إذا
يمكن يجب غير تم حيث أي يتم كانت ليس فقط أكثر خلال يوم ملف صورة فيما اسم عرض الملف كلمة المستوى قيمة القائمة القيمة
الإنجليزية النص نوع قائمة عدد المرور تحتوي صوت صحيح حجم عنصر بيانات الخط اذا ضبط الولايات يكون بدون المستخدم أثناء
العرض لون اللون الفرنسية تغيير مصدر نص زر الروسية الصورة عنوان موقع الكبيرة يحتوي صور فيديو الآن تكون الصفحة حرف الأقل
موجود خط الحد حذف جدول الموقع لوحة ساعة של את על לא הוא היא זה אני עם כל מה יש גם או אם כי היה אבל רק עוד אחרי לפני
היום זמן אין כדי יותר בין אל שלך להיות אחד כאשר יכול צריך ניתן נא שם שמע ללא אינו מספר מקור סוג מסוג משתמש עבור שני
מידע זו לבחור שינוי נוסף חדשה צבע מחדש שעה חייב השירות מדי דקות מערכת אשר לה פעולה בלתי אינה שעות מספיק לכל מצב בזמן
לך לקבל בלבד בעוד אחר להשתמש גדול כבר האם שנה יום המדינה בית אך מלא חדש למצוא שוב לפי ידי ימים שאין שירות עליה דרך כמו
के में की है को से का और पर यह हैं कि एक ने था वह लिए नहीं तो भी हो कर या जो इस गया अपने साथ बाद करने किया करें जा रहा
कोई जब समय आप सकता चाहिए ऑफ क्या नाम लिये रंग पाठ हेतु मान प्रकार करता आकार सूची जाना संख्या सही प्रयोग रूप अगर स्थान
स्थिति सेट क्लिक जाता जाने विकल्प योग्य पहले दिया बीच वर्ण उपयोग मद डेटा द्वारा स्क्रीन करना सभी यदि सक्रिय होना पता
पहुँच जरूरी करेगा संदेश समूह नीचे कुछ चयन बाहर कम प्रभावित संकेत कार्य दृश्य 그 이 것 수 있는 있습니다 없습니다 합니다 그리고 하지만 때문에 또는
대한 우리 이름 모든 다른 현재 시간 오늘 사람 다시 다음 경우 위한 보다 함께 없는 너무 없음 파일 않습니다 오류 실패 사용할 옵션 문자 출력 작업 설정 해당 사용자 입력 만들 있음 값을 시스템 위치 사용 이미
문자열 여부 않은 정보를 기본 목록 대상 서버 지정 상태 데이터 대해 최대 표시 않는 번째 페이지 실행 변수 코드 변경 접근 함수 들어 번호 입니다 종료 시작 정보 그룹 추가 자료 아닌 마지막 여러 삭제 검색
프로그램 정의 대신 연결 전체 가능한 환경 선택 처리 로그 일반 내부 업데이트 я а к у о ты же они весь который свой мочь другой тот человек сказать один
рука дело жизнь первый большой новый знать стать идти работа слово место вопрос сторона страна мир случай город вода
хорошо потому говорить сегодня завтра помощь понимать история вечером утром письмо необходимо сообщение результат
اليوم الوقت صباح مساء الناس المدينة الماء البلد الحياة العمل بيت طريق كبير جديد جيد لماذا مرة أول سؤال جواب رسالة
تاريخ الحكومة نتيجة مهم معلومات العالم आज कल लोग शहर पानी देश जीवन काम शब्द घर बड़ा नया अच्छा क्यों बार पहला सवाल जवाब
मदद पत्र इतिहास सरकार परिणाम महत्वपूर्ण जानकारी दुनिया सुबह शाम मौसम टिकट σήμερα άνθρωπος χρόνος ημέρα πόλη χώρα ζωή
σπίτι μεγάλο καλά γιατί κάθε πρώτη φορά κυβέρνηση αποτέλεσμα θέμα
""")
"""The commonest words of scripts whose other words cost several tokens; recent vocabularies have a token for each."""

ENGLISH_WORDS: Final = _words(
    "the of and to in is for that with this not be or are if from it on by can you return import def self None type name"
    " id"
)
"""A text with at least as many of these as of WESTERN_WORDS is English or code."""

WESTERN_WORDS: Final = _words(
    "de la el los las del que en un una para por con se es le les des du et est pour dans der die das und ist nicht zu"
    " mit den von ein eine il di che per non da os em uma het een van voor niet te yang dan untuk dengan ini pada tidak"
    " dari"
)
"""Common words of Romance and Germanic languages and of Indonesian."""

ESTIMATE_NAME: Final = "estimate-2"
"""The counter name of these estimates. It changes whenever the counting changes."""

_RUN_COSTS: Final[Mapping[str, tuple[int, int, int]]] = {
    "common": (0, 1000, 0), "english": (4, 940, 73), "western": (3, 462, 399), "eastern": (2, 800, 321),
    "id": (2, 1600, 480), "digits": (3, 1000, 0), "punctuation": (2, 900, 80), "line": (1, 556, 37),
    "indent": (16, 615, 17), "cyrillic": (4, 1937, 102), "slavic": (3, 1502, 291), "greek": (2, 1453, 341),
    "caucasus": (2, 1369, 283), "hebrew": (2, 746, 528), "arabic": (2, 1400, 223), "devanagari": (2, 1254, 321),
    "indic": (2, 275, 649), "thai": (2, 1800, 380), "simplified": (1, 1470, 722), "traditional": (1, 1756, 947),
    "kanji": (1, 720, 757), "kana": (1, 1209, 575), "hangul": (1, 826, 781), "signs": (1, 744, 0),
    "emoji": (1, 1642, 0), "other": (1, 2000, 0),
}  # fmt: skip
"""By kind of run: the longest short run, thousandths of a token for a short run, and for each further character."""

_ASCII_WORD: Final = re.compile("[A-Z]?[a-z]+|[A-Z]+")
_LATIN_WORD: Final = re.compile("[A-Za-z\u00aa-\u024f\u0300-\u036f\u1e00-\u1eff]+")
_ACCENTED: Final = re.compile("[\u00c0-\u024f\u1ea0-\u1eff]")
_MIXED_ID: Final = re.compile("(?<![A-Za-z0-9])(?:[A-Za-z]++[0-9]|[0-9]++[A-Za-z])[A-Za-z0-9]*")
_DIGITS: Final = re.compile("[0-9]{1,3}")
_PUNCTUATION: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f!-/:-@\[-`{-\x7f]+")
_LINE_BREAKS: Final = re.compile("[\r\n]+")
_INDENT: Final = re.compile("[ \t]{2,}")
_SCRIPTS: Final = re.compile(
    "[\x00-\u02ff]+"
    "|(?P<cyrillic>[\u0400-\u052f]+)"
    "|(?P<han>[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0002ffff]+)"
    "|(?P<kana>[\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f]+)"
    "|(?P<hangul>[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]+)"
    "|(?P<arabic>[\u0600-\u06ff\u0750-\u077f\u200c\ufb50-\ufdff\ufe70-\ufefc]+)"
    "|(?P<devanagari>[\u0900-\u097f]+)"
    "|(?P<thai>[\u0e00-\u0eff]+)"
    "|(?P<greek>[\u0370-\u03ff\u1f00-\u1fff]+)"
    "|(?P<hebrew>[\u0590-\u05ff\ufb1d-\ufb4f]+)"
    "|(?P<indic>[\u0980-\u0dff]+)"
    "|(?P<caucasus>[\u0530-\u058f\u10a0-\u10ff]+)"
    "|(?P<emoji>[\u200d\u2600-\u27bf\ufe0f\U0001f000-\U0001faff])"
    "|(?P<signs>[\u2000-\u206f\u3000-\u303f\uff00-\uff65]+)"
    "|(?P<other>[^\u0300-\u036f\u1e00-\u1eff])"
)

# Languages that share a script have different costs. A few letters or words tell them apart.
_NOT_RUSSIAN: Final = re.compile("[іїєґўјљњћ]|ъ[^еёюяЕЁЮЯ]")
_TRADITIONAL: Final = re.compile(
    "[這個們來說時國會對學發經過還後為與開關點問無機體樣實現種處將從應當設檔網輸資碼載選錯誤東見長門間動兩讓邊頭書寫話請聽]"
)
_CHARS_PER_RARE_ACCENT: Final = 60
"""A text with fewer accents than one in so many characters counts as English with foreign names."""

_SAMPLE_SLICES: Final = 16


def estimate_tokens(text: str) -> int:
    """Estimate one text; at least 1. A very long text is estimated from samples."""
    if len(text) > limits.ESTIMATE_CHARS_MAX:
        step, size = len(text) // _SAMPLE_SLICES, limits.ESTIMATE_CHARS_MAX // _SAMPLE_SLICES
        slices = (text[start : start + size] for start in range(0, step * _SAMPLE_SLICES, step))
        return max(1, sum(map(_estimate_thousandths, slices)) * step // (size * 1000))
    return max(1, round(_estimate_thousandths(text) / 1000))


def _estimate_thousandths(text: str) -> int:
    thousandths = 0
    for kind, runs in _split_runs(text):
        short, cost, beyond = _RUN_COSTS[kind]
        thousandths += cost * len(runs)
        if beyond:
            for length, count in Counter(map(len, runs)).items():
                if length > short:
                    thousandths += count * beyond * (length - short)
    return thousandths


def _split_runs(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the runs of a text by kind. Every pass is a regular expression: a loop over characters would be slow."""
    digits = _DIGITS.findall(text)
    if digits and (ids := _MIXED_ID.findall(text)):
        yield "id", ids
        text = _MIXED_ID.sub("\n", text)
        digits = _DIGITS.findall(text)
    yield "digits", digits
    yield _latin_words(text)
    yield "punctuation", _PUNCTUATION.findall(text)
    if "\n" in text or "\r" in text:
        yield "line", _LINE_BREAKS.findall(text)
    if "  " in text or "\t" in text:
        yield "indent", _INDENT.findall(text)
    if not text.isascii():
        yield from _other_scripts(text)


def _latin_words(text: str) -> tuple[str, list[str]]:
    accents = [] if text.isascii() else _ACCENTED.findall(text)
    if _CHARS_PER_RARE_ACCENT * len(accents) >= len(text) > 0:
        eastern = sum(map("\u00ff".__lt__, accents))
        return "eastern" if 3 * eastern >= len(accents) else "western", _LATIN_WORD.findall(text)
    words = _ASCII_WORD.findall(text)
    foreign = sum(map(WESTERN_WORDS.__contains__, words)) > sum(map(ENGLISH_WORDS.__contains__, words))
    return "western" if foreign else "english", words


def _other_scripts(text: str) -> Iterator[tuple[str, list[str]]]:
    found: dict[str | None, list[str]] = {}
    for match in _SCRIPTS.finditer(text):
        found.setdefault(match.lastgroup, []).append(match[0])
    for kind, runs in found.items():
        if kind == "han":
            yield "kanji" if "kana" in found else "traditional" if _TRADITIONAL.search(text) else "simplified", runs
        elif kind is not None:
            rare = list(filterfalse(SINGLE_TOKEN_WORDS.__contains__, runs))
            yield "common", runs[len(rare) :]  # only their number matters
            yield ("slavic" if kind == "cyrillic" and _NOT_RUSSIAN.search(text) else kind), rare


_CLAUDE_RATIOS: Final = (
    (re.compile("(?<![A-Za-z]) ?[A-Za-z]*+[\u00c0-\u024f\u1e00-\u1eff][A-Za-z\u00c0-\u024f\u1e00-\u1eff]*"), 165),
    (re.compile(" ?[\u0400-\u052f]+"), 180),
    (re.compile(" ?[\u0590-\u05ff]+"), 185),
    (re.compile(" ?[\u0370-\u03ff\u1f00-\u1fff\u0600-\u06ff\u0750-\u077f]+"), 285),
    (re.compile(" ?[\u0900-\u097f]+"), 330),
    (re.compile(" ?[\u0980-\u0eff\u0530-\u058f\u10a0-\u10ff]+"), 440),
    (re.compile("[\u3040-\u30ff\u3400-\u9fff]+"), 145),
    (re.compile(" ?[\u1100-\u11ff\uac00-\ud7af]+"), 170),
)  # fmt: skip
"""By script: hundredths of a token for each token that o200k counts."""

_CLAUDE_RATIO_OTHER: Final = 120


def claude_count(o200k: Callable[[str], int], hundredths: int = 100) -> Callable[[str], int]:
    """Return a function that counts for Claude; `hundredths` scales the count for later models."""

    def count(text: str) -> int:
        tokens, rest = 0, text
        if not text.isascii():
            for pattern, ratio in _CLAUDE_RATIOS:
                if runs := pattern.findall(rest):
                    tokens += ratio * o200k("".join(runs))
                    rest = pattern.sub("", rest)
        tokens += _CLAUDE_RATIO_OTHER * o200k(rest)
        return -(-tokens * hundredths // 10_000)

    return count


def count_by_script(text: str) -> int:
    """Estimate one text; 0 if it is empty."""
    return estimate_tokens(text) if text else 0
