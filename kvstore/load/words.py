"""Words: prompts made of common words, by name. The same seed and name make the same text, whatever was made before.

A text of more tokens begins with the text of fewer, so that a partial block is a beginning of the whole one.
"""

import random
from functools import lru_cache

# Short and common, so that most tokenizers have each, with the blank before it, as one token.
_WORDS = """
able about above across action after again against age ago air all almost alone along already also always among
amount and animal answer any apple area arm army around art ask away baby back bad ball bank base be bear beat
beauty because become bed before began behind best better between big bird black blood blow blue board boat body
bone book born both bottom box boy bread break bridge bright bring broad brother brown build burn business busy but
buy by call came camp can capital car care carry case cat catch cause cell center central certain chair chance
change character charge chief child choose church circle city claim class clean clear climb close cloth cloud coast
coat cold color column come common company compare complete condition consider contain continue control cook cool
copy corn corner correct cost cotton could count country course cover cow create cross crowd cry current cut dance
danger dark daughter day dead deal dear death decide deep degree demand describe desert design determine develop
did differ direct discuss distance divide do doctor does dog dollar done door double down draw dream dress drink
drive drop dry during each early earth east easy eat edge effect egg eight either electric else end enemy energy
engine enjoy enough enter equal even evening event ever every exact example except expect experience explain eye
face fact fair fall family famous far farm fast father favor fear feed feel few field fig fight figure fill final
find fine finger finish fire first fish fit five flat floor flow flower fly follow food foot for force foreign
forest form forward found four free fresh friend from front fruit full fun game garden gas gave general gentle get
girl give glad glass go gold gone good got govern grass gray great green grew ground group grow guess guide gun had
hair half hand happen happy hard has hat have he head hear heart heat heavy help her here high hill him history hit
hold hole home hope horse hot hotel hour house how huge human hundred hunt ice idea if imagine in inch include
indicate industry inside instrument interest iron island it job join joy jump just keep key kill kind king knew
know lady lake land language large last late laugh law lay lead learn least leave left leg length less let letter
level lie life lift light like line list listen little live local long look lost lot loud love low machine made main
major make man many map mark market mass master match material matter may me mean measure meat meet middle might
mile milk million mind mine minute miss modern moment money month moon more morning most mother motion mountain
mouth move much music must my name nation natural nature near necessary need never new next night nine no noise nor
north nose note nothing notice noun now number object observe ocean of off offer office often oil old on once one
only open operate opposite or order original other our out over own page paint pair paper part particular party
pass past path pattern pay people perhaps period person picture piece place plain plan planet plant play please
point poor population port position possible post pound power practice prepare present press pretty print private
problem process produce product program property protect prove provide public pull push put quart question quick
quiet quite race radio rain raise ran range rate reach read ready real reason receive record red region remember
repeat reply represent require rest result return rich ride right ring rise river road rock roll room root rope rose
round row rule run safe sail salt same sand sat save say scale school science sea search season seat second section
see seed seem select self sell send sense sentence separate serve set settle seven several shall shape share sharp
she sheet shell shine ship shirt shoe shop short should shoulder shout show side sight sign silent silver similar
simple since sing single sister sit six size skill skin sky sleep slip slow small smell smile snow so social soft
soil soldier solution some son song soon sound south space speak special speech speed spell spend spoke spot spread
spring square stand star start state station stay steam steel step stick still stone stood stop store story straight
strange stream street strong student study subject success such sudden sugar suggest suit summer sun supply support
sure surface surprise swim symbol system table tail take talk tall teach team tell ten term test than thank that the
their them then there these they thick thin thing think third this those though thought thousand three through
throw thus tie time tiny to together told tone too tool top total touch toward town track trade train travel tree
triangle trip trouble truck true try turn twenty two type under unit until up upon us use usual valley value vary
verb very view village visit voice vowel wait walk wall want war warm was wash watch water wave way we wear weather
week weight well went were west what wheel when where which while white who whole whose why wide wife wild will win
wind window winter wire wish with woman wonder wood word work world would write written wrong yard year yellow yes
yet you young your
"""
WORDS = tuple(_WORDS.split())
CACHED_TEXTS = 4096  # of blocks of traces and of shared beginnings; some 10 MB at 512 tokens each


class Words:
    """tokens_per_word: of the endpoint's tokenizer, as measured; 1.0 when it does not tell."""

    def __init__(self, seed: int, tokens_per_word: float = 1.0) -> None:
        self._seed = seed
        self._tokens_per_word = tokens_per_word
        self._shared = lru_cache(CACHED_TEXTS)(self.text)

    def text(self, name: str, tokens: int) -> str:
        """About so many tokens, at least a word."""
        count = max(1, round(tokens / self._tokens_per_word))
        return " ".join(random.Random(f"{self._seed}/{name}").choices(WORDS, k=count))

    def shared(self, name: str, tokens: int) -> str:
        """The same, for what will be asked for again."""
        return self._shared(name, tokens)
