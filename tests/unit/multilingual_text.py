"""Text in many scripts, made from word lists of our own; the same seed gives the same text."""

from __future__ import annotations

import random

WORDS = {
    "english": (
        "the of and to in is was for that with they have from this not but what all were when we there can an your"
        " which their said if do will each about how up out them then she many some so these would other into has"
        " more her two like him see time could no make than first been its who now people my made over did down"
        " only way find use may water long little very after words called just where most know harbour ferry ticket"
        " weather morning evening traveller booking window kitchen answer question remember important government"
        " different something together children mountain possible language understand information department"
        " several certain usually problem system service change because between should another thought"
        " lighthouse harbourmaster timetable departures cancellation compensation luggage wheelchair"
        " passengers reservation quayside seasickness refundable confirmation accommodation afterwards"
        " nevertheless particularly circumstances"
    ),
    "russian": (
        "и в не на я быть он с что а по это она этот к но они мы весь который из у за свой мочь год от так о для ты же"
        " все тот человек сказать один время если другой день рука дело жизнь первый очень большой новый знать стать"
        " идти работа слово место вопрос сторона страна мир случай город вода корабль билет утром погода вечером"
        " хорошо потому понимать говорить сегодня завтра помощь письмо дорога история необходимо получить"
        " сообщение правительство результат пользователь"
        " расписание отправление пассажиров бронирование подтверждение причал маяком каюты возмещение"
        " отменённый задержка путешественники багажом паромная переправа следующего обстоятельства"
        " предупредили настройки ошибками файлов каталога значения строке удалось невозможно использованием"
        " параметров подключения обновлений запрошенный"
    ),
    "greek": (
        "και το να του η της με που την από για είναι τον ο θα τα στο δεν οι σε στην των μια ένα τους αυτό αλλά όταν"
        " πολύ μόνο μας ότι σήμερα αύριο πλοίο εισιτήριο καιρός πρωί βράδυ άνθρωπος χρόνος ημέρα νερό πόλη χώρα ζωή"
        " δουλειά λέξη θέμα σπίτι δρόμος μεγάλο καλά γιατί πρέπει μπορεί κάθε πρώτη φορά ερώτηση απάντηση βοήθεια"
        " γράμμα ιστορία κυβέρνηση αποτέλεσμα σημαντικό"
        " δρομολόγιο αναχώρηση επιβάτες κράτηση επιβεβαίωση προβλήτα φάρος καμπίνες αποζημίωση ακύρωση"
        " καθυστέρηση ταξιδιώτες αποσκευές πορθμείο επόμενου περιστάσεις ρυθμίσεις σφάλματα αρχείων κατάλογο"
        " τιμή γραμμής αδύνατη παραμέτρους σύνδεσης"
    ),
    "arabic": (
        "في من على إلى أن هذا هذه التي الذي كان مع عن لا ما كل بعد قبل قد هو هي بين عند ثم أو يوم اليوم غدا الوقت"
        " السفينة تذكرة الطقس صباح مساء الناس المدينة الماء البلد الحياة العمل كلمة بيت طريق كبير جديد جيد لماذا"
        " يجب يمكن مرة أول سؤال جواب مساعدة رسالة تاريخ الحكومة نتيجة مهم المستخدم معلومات العالم خلال حيث"
        " الجدول المغادرة المسافرين الحجز التأكيد الرصيف المنارة المقصورة التعويض الإلغاء التأخير الأمتعة"
        " العبارة التالية الظروف الإعدادات الأخطاء الملفات المجلد القيمة السطر تعذر استخدام المعاملات الاتصال"
        " التحديثات بالركاب"
    ),
    "hebrew": (
        "של את על לא הוא היא זה אני עם כל מה יש גם או אם כי היה אבל רק עוד אחרי לפני היום מחר זמן אנשים עיר מים"
        " ארץ חיים עבודה מילה בית דרך גדול חדש טוב למה צריך יכול פעם ראשון שאלה תשובה עזרה מכתב היסטוריה"
        " ממשלה תוצאה חשוב משתמש מידע עולם אונייה כרטיס בוקר ערב מזג אוויר"
        " לוח הפלגה נוסעים הזמנה אישור רציף מגדלור תאים פיצוי ביטול עיכוב מטען מעבורת הבאה נסיבות הגדרות"
        " שגיאות קבצים תיקייה ערכים שורה להשתמש פרמטרים חיבור עדכונים המבוקש"
    ),
    "hindi": (
        "के में की है को से का और पर यह हैं कि एक ने था वह लिए नहीं तो भी हो कर या जो इस गया अपने साथ बाद करने"
        " किया आज कल समय लोग शहर पानी देश जीवन काम शब्द घर रास्ता बड़ा नया अच्छा क्यों चाहिए सकता बार पहला सवाल"
        " जवाब मदद पत्र इतिहास सरकार परिणाम महत्वपूर्ण जानकारी दुनिया जहाज टिकट सुबह शाम मौसम"
        " समयसारणी प्रस्थान यात्रियों आरक्षण पुष्टि घाट प्रकाशस्तंभ केबिन मुआवजा रद्दीकरण विलंब सामान नौका"
        " अगली परिस्थितियों सेटिंग्स त्रुटियाँ फ़ाइलें निर्देशिका मूल्य पंक्ति असंभव पैरामीटर कनेक्शन"
    ),
    "thai": (
        "ที่ และ ใน เป็น ของ การ มี ไม่ ได้ ให้ ว่า จะ กับ จาก มา ไป นี้ ก็ ผู้ คน วัน นั้น แต่ หรือ ต้อง อยู่ แล้ว ทำ"
        " เวลา เมือง น้ำ ประเทศ ชีวิต งาน คำ บ้าน ทาง ใหญ่ ใหม่ ดี ทำไม ควร สามารถ ครั้ง แรก คำถาม คำตอบ ช่วยเหลือ"
        " จดหมาย ประวัติศาสตร์ รัฐบาล ผลลัพธ์ สำคัญ ข้อมูล โลก เรือ ตั๋ว เช้า เย็น อากาศ วันนี้ พรุ่งนี้"
        " ตารางเดินเรือ ผู้โดยสาร การจอง ยืนยัน ท่าเรือ ประภาคาร ห้องพัก ค่าชดเชย ยกเลิก ล่าช้า กระเป๋าเดินทาง"
        " เรือข้ามฟาก ถัดไป สถานการณ์ การตั้งค่า ข้อผิดพลาด แฟ้ม ไดเรกทอรี บรรทัด พารามิเตอร์ การเชื่อมต่อ"
        " ปรับปรุง"
    ),
    "chinese": (
        "的 一 是 不 了 在 人 有 我 他 这 中 大 来 上 国 个 到 说 们 为 子 和 你 地 出 道 也 时 年 得 就 那 要 下 以 生 会 自 着 去"
        " 之 过 家 学 对 可 她 里 后 今天 明天 时间 城市 生活 工作 问题 回答 帮助 历史 政府 结果 重要 信息 世界 天气 早上 晚上 船票"
        " 码头 旅客 我们 他们 可以 没有 因为 所以 但是 已经 知道 开始 现在 需要 使用 系统 服务"
        " 时刻表 启航 乘客 预订 确认 码头上 灯塔 船舱 赔偿 取消 延误 行李 渡轮 下一班 情况 设置 错误 文件 目录 参数 连接 更新 轮椅 暴风雨 港务局 退款 潮汐 客舱 舷窗 缆绳"
    ),
    "japanese": (
        "の に は を た が で て と し れ さ ある いる も する から な こと として い や れる など なっ ない この ため その あっ よう"
        " また もの という あり まで られ なる へ か だ これ によって により おり より による 今日 明日 時間 都市 生活 仕事 質問 回答"
        " 歴史 政府 結果 重要 情報 世界 天気 朝 夜 船 切符 旅行 です ます ました ください 私 彼 水 国 人 年 使用 データ システム サービス メッセージ"
        " 時刻表 出航 乗客 予約 確認 桟橋 灯台 客室 補償 欠航 遅延 手荷物 フェリー 次の便 状況 設定 エラー ファイル ディレクトリ パラメータ 接続 更新 車椅子 払い戻し 潮流 港湾局"
        " 乗り遅れ 甲板"
    ),
    "korean": (
        "그 이 저 것 수 나 사람 우리 아니 등 때 년 일 말 하다 있다 되다 없다 않다 같다 보다 오늘 내일 시간 도시 물 나라 생활 일을"
        " 단어 집 길 큰 새로운 좋은 왜 해야 할 처음 질문 대답 도움 편지 역사 정부 결과 중요한 정보 세계 배 표를 아침 저녁 날씨가"
        " 여행자는 그리고 그러나 하지만 때문에 에서 으로 합니다 있습니다 사용자 시스템 서비스를 메시지"
        " 시간표 출항 승객들은 예약을 확인 부두에서 등대 객실 보상금 취소되었습니다 지연 수하물 여객선이 다음 상황에 설정 오류가 파일을 디렉터리 매개변수 연결할 업데이트 휠체어 환불을"
        " 갑판 항만청"
    ),
    "emoji": "😀 😂 🎉 👍 🙏 ❤️ 🔥 😊 😎 🚀 ✅ 👋 🤔 😢 💡 📦 🌍 ☀️ 🌧️ ⛴️ 🎫 🍎 👩‍💻 🇳🇴 👍🏽 ⭐ 📅 😅 💪 🐟",
    "code": (
        "return self def if else for in import class None True value name path result index count list dict str int"
        " raise try except with open as message session token text data key item state event append join"
    ),
}  # fmt: skip

_SPACED = {"english", "russian", "greek", "arabic", "hebrew", "hindi", "korean"}
_STOPS = {"chinese": "，。", "japanese": "、。", "hindi": ",।", "arabic": "،."}


def strings(script: str, count: int, seed: int = 7) -> list[str]:
    """Return texts of 51 to some 900 characters: sentences of the script, with a number now and then."""
    rng = random.Random(f"{script} {seed}")
    write = _code if script == "code" else _sentence
    found: list[str] = []
    while len(found) < count:
        text, length = "", rng.choice((60, 90, 150, 300, 800))
        while len(text) < length:
            text += write(rng, script)
        found.append(text)
    return found


def _sentence(rng: random.Random, script: str) -> str:
    words = rng.choices(WORDS[script].split(), k=rng.randint(5, 16))
    if rng.random() < 0.15:
        words.insert(rng.randrange(len(words)), str(rng.randint(1, 9_999)))
    comma, stop = _STOPS.get(script, ",.")
    space = " " if script in _SPACED or (script == "emoji" and rng.random() < 0.5) else ""
    if script != "emoji":
        words[len(words) // 2] += comma
    end = stop if script != "emoji" else ""
    return space.join(words).capitalize() + end + (" " if space or script == "thai" else "")


def _code(rng: random.Random, script: str) -> str:
    a, b, c, d = rng.choices(WORDS[script].split(), k=4)
    n = rng.randint(0, 5_000)
    return rng.choice((
        f"    {a}_{b} = {c}.{d}({n})\n",
        f"def {a}_{b}({c}, {d}={n}):\n    return {c} + {d}\n\n",
        f'        if {a}["{b}"] != {n}:\n            raise {c.title()}Error("{d}")\n',
        f'{{"{a}": "{b}", "{c}": [{n}, {n + 1}], "{d}": null}}\n',
        f"for {a} in {b}.{c}_{d}():  # {a} {b} {c}\n    {d}.append({a}[{n}])\n",
    ))  # fmt: skip


def wild(count: int, seed: int = 7) -> list[str]:
    """Return texts no person would write: any characters next to each other, words in between."""
    rng = random.Random(f"wild {seed}")
    ranges = ((0, 127), (0, 0x250), (0x250, 0x3000), (0x3000, 0xD7FF), (0xE000, 0x10FFFF))
    found: list[str] = []
    for _ in range(count):
        pieces = [chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(0, 60))]
        pieces += rng.choices(WORDS[rng.choice(sorted(WORDS))].split(), k=rng.randint(0, 9))
        pieces += rng.choices(["  ", "\n\n", "\r\n", "\t", "'s", "'LL", "<|endoftext|>", "123456"], k=3)
        rng.shuffle(pieces)
        found.append("".join(pieces))
    return found
