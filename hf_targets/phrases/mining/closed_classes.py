"""English words of closed classes, by their tags of the Penn Treebank, and with them some common words of open ones."""

CLOSED_CLASSES = {
    "DT": "the a an this that these those each every some any no another both either neither all",
    "PRP$": "my your his her its our their",
    "PRP": "i you he she it we they me him us them himself herself itself themselves",
    "IN": "of in on at by for with from into onto upon about after before during against between among through over "
    "under above below within without along across behind beyond near since until toward towards throughout despite "
    "via per as like than because although though while if whether",
    "TO": "to",
    "CC": "and or but nor",
    "MD": "can could may might must shall should will would cannot",
    "VB": "be have do make take give get go come see find become include begin win play write say know use call show",
    "VBD": "was were had did became made took gave got went came saw found began won wrote said knew led left held met "
    "ran set lost sold sang sat stood brought built kept grew fell rose chose sent spent told thought fought taught",
    "VBZ": "is has does",
    "VBP": "are am",
    "VBN": "been done given taken seen known written shown born gone begun sung chosen drawn grown broken driven",
    "VBG": "being having doing",
    "RB": "not n't also very only just even still already never always often then there here too again later ago once "
    "however more most first",
    "WDT": "which",
    "WP": "who whom what",
    "WRB": "when where why how",
    "EX": "there",
    "RP": "up out off down away",
    "CD": "one two three four five six seven eight nine ten eleven twelve hundred thousand million billion",
    "JJ": "new old good great high small large early late long own other same first last second third many several few "
    "such main major national american british english french german public young big former best",
    "POS": "'s '",
}

_AUXILIARIES = "be been being was were have having had do done did"
FUNCTION_WORDS = frozenset(
    word
    for tag, words in [*CLOSED_CLASSES.items(), ("", _AUXILIARIES)]
    if tag not in ("VB", "VBD", "VBN", "VBG", "CD", "JJ")
    for word in words.split()
)
"""Words, in lower case, that tell nothing of a subject: articles, pronouns, prepositions, auxiliaries, adverbs."""
