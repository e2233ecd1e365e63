"""Made-up English text for benchmarks: the same words for the same seed, on every machine and Python."""

from __future__ import annotations

import random

# Common words, most of which common tokenizers know as one token, so that a count of words is close to one of tokens.
_LIST = """
about above across after again air almost alone along already always and animal another answer any apple around ask autumn
away back bad bag ball bank bear beautiful because bed before begin behind believe below best better between big bird black
blue boat body book both box boy bread bridge bright bring brother brown build busy but buy call car care carry cat catch
chair change child city class clean clear climb clock close cloud coat coffee cold color come cook corner country cover cross
cup cut dance dark day dear deep door down draw dream dress drink drive dry during each ear early earth east easy eat edge
egg empty end enough evening ever every eye face fall family far farm fast father feel few field fight find fine fire first
fish five floor flower fly follow food foot for forest forget four free fresh friend from front full funny game garden gate
gentle girl give glad glass gold good grass great green ground group grow guess hair half hand happy hard hat have head hear
heart heavy hello help here high hill history hold home hope horse hot hour house how hundred hungry ice idea if inside
island join jump just keep key kind king kitchen know lake lamp land large last late laugh learn leave left letter light like
line list listen little live long look lost love low lucky make man many map market maybe meet milk mind minute money moon
more morning mother mountain mouth move much music my name near never new next nice night no north nose not now number ocean
of off often old on once one only open or orange other our out over own page paint paper park part party past people perhaps
picture piece place plan plant play please point poor press pretty promise pull push put queen question quick quiet rain
read ready real red remember rest rice rich ride right ring river road rock room round run sad safe same sand say school sea
season second secret see seem send seven shade shape share sharp she ship shoe shop short show shut sick side silver simple
since sing sister sit six sky sleep slow small smile snow so soft some song soon sound south speak spring stand star start
stay step still stone stop storm story strange street strong summer sun sure sweet swim table take talk tall tea teach tell
ten than thank that then there thing think this three through time tired today together tomorrow too town train travel tree
true try turn two under until up use very village voice wait walk wall want warm wash watch water way we wear weather week
well west wet what wheel when where which while white who whole why wide wild wind window winter wish with woman wonder wood
word work world write year yellow yes yesterday yet you young your
"""
WORDS = tuple(_LIST.split())

_SENTENCE_WORDS = (5, 14)  # shortest and longest sentence


def make_text(generator: random.Random, words: int) -> str:
    """`words` words (at least 1) in sentences, each with a capital and a full stop."""
    if words < 1:
        raise ValueError("a text has at least one word")
    sentences = []
    while words > 0:
        length = min(words, generator.randint(*_SENTENCE_WORDS))
        words -= length
        sentence = [generator.choice(WORDS) for _ in range(length)]
        sentence[0] = sentence[0].capitalize()
        sentences.append(" ".join(sentence) + ".")
    return " ".join(sentences)
