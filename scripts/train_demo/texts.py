"""The texts of the recordings: sentences written for this project, by language, and random sequences of their words."""

from collections.abc import Sequence

import numpy as np

TRAINING = {
    "en-us": (
        "The morning train was late again, so we walked along the river.",
        "Please bring the blue map and both lamps to the upper room.",
        "A warm wind moved slowly over the open fields of barley.",
        "Nobody believed the farmer when he spoke about the silver fish.",
        "My brother baked apple pie for the whole village.",
        "How many people live above the old post office?",
        "Put the boxes by the door, and remember to lock the context.",
        "She hums a simple tune while she paints the kitchen wall.",
        "Fresh pepper, brown bread, and a piece of cheese: that is enough.",
        "They argued for hours, but the problem remained unsolved.",
        "Five women very carefully moved the wooden wheel.",
        "When the fog lifts, you will see the harbor and the bridge.",
        "I would rather hope than worry about tomorrow.",
        "Yes! No. Maybe. Perhaps we should ask him once more.",
        "The judge measured each word before she gave her answer.",
        "Thirty thousand birds flew south through the narrow pass.",
        "Good food and good music make a good evening.",
        "Could you pass me the sugar, the milk and the honey?",
    ),
    "en-gb-x-rp": (
        "The baker's boy pushed a barrow full of plums up the hill.",
        "I have never thought much of boats, but I am fond of harbors.",
        "Mind the gap between the platform and the carriage, please.",
        "We bought paper, pens and a bottle of purple ink.",
        "What a pity that the museum is closed on Mondays.",
        "Over the moor, a bell was tolling for the evening.",
        "Grandfather's watch stopped working when the war began.",
        "Few of us knew why the room had been painted yellow.",
    ),
    "de": (
        "Am Morgen lag Nebel über dem Fluss, und niemand war unterwegs.",
        "Bitte bring mir die blaue Mappe und zwei Lampen.",
        "Meine Mutter backt am Sonntag einen Kuchen mit Pflaumen.",
        "Wie viele Menschen wohnen oben auf dem Berg?",
        "Der alte Bauer sprach lange von seinem besten Pferd.",
        "Ohne Wasser wächst kein Baum, ohne Übung kein Meister.",
        "Schöne Grüße aus Köln, und vergiss die Bücher nicht.",
        "Fünf Freunde fuhren früh mit dem Fahrrad fort.",
    ),
    "fr": (
        "Le matin, une brume légère couvrait la rivière et les prés.",
        "Apportez-moi la carte bleue et deux petites lampes.",
        "Ma mère prépare une tarte aux pommes pour tout le village.",
        "Combien de personnes habitent au-dessus de la poste?",
        "Un bon vin blanc, du pain frais et un peu de beurre.",
        "Le vieux fermier parlait souvent de son plus beau cheval.",
        "Je voudrais voir le pont avant la tombée de la nuit.",
        "Qui veut aller loin ménage sa monture.",
    ),
    "es": (
        "Por la mañana, una niebla suave cubría el río.",
        "Tráeme el mapa azul y dos lámparas pequeñas, por favor.",
        "Mi hermano prepara un pastel de manzana para el pueblo.",
        "¿Cuántas personas viven encima de la oficina?",
        "El viejo campesino hablaba mucho de su mejor caballo.",
        "Pan, queso y un poco de pimienta: con eso basta.",
        "Nadie sabe por qué pintaron la puerta de amarillo.",
    ),
    "pt-br": (
        "De manhã, uma neblina leve cobria o rio e os campos.",
        "Por favor, traga o mapa azul e duas lâmpadas pequenas.",
        "Minha irmã fez um bolo de maçã para toda a família.",
        "Quantas pessoas moram em cima do correio?",
        "O velho fazendeiro falava muito do seu melhor cavalo.",
        "Ninguém sabe por que a porta foi pintada de amarelo.",
    ),
    "nl": (
        "In de ochtend lag er mist boven de rivier.",
        "Breng me alsjeblieft de blauwe kaart en twee lampen.",
        "Mijn moeder bakt op zondag een taart met pruimen.",
        "Hoeveel mensen wonen er boven het postkantoor?",
        "De oude boer sprak graag over zijn beste paard.",
        "Vijf vrienden fietsten vroeg naar de haven.",
    ),
    "sv": (
        "På morgonen låg dimman över floden och ängarna.",
        "Snälla, ta med den blå kartan och två lampor.",
        "Min bror bakar en äppelpaj till hela byn.",
        "Hur många människor bor ovanför posten?",
        "Den gamle bonden pratade ofta om sin bästa häst.",
    ),
    "pl": (
        "Rano nad rzeką unosiła się lekka mgła.",
        "Proszę, przynieś mi niebieską mapę i dwie lampy.",
        "Moja mama piecze w niedzielę placek ze śliwkami.",
        "Ile osób mieszka nad pocztą?",
        "Stary gospodarz mówił dużo o swoim najlepszym koniu.",
    ),
    "tr": (
        "Sabahleyin nehrin üstünde hafif bir sis vardı.",
        "Lütfen bana mavi haritayı ve iki küçük lambayı getir.",
        "Annem bütün köy için elmalı bir pasta pişirdi.",
        "Eski köprünün yanında beş balıkçı bekliyordu.",
    ),
}
"""espeak-ng's language codes → sentences."""

HELD_OUT = {
    "en-us": (
        "My lips follow these words. Papa, mama, and the boats by the pier.",
        "Every member of the jury promised to be both fair and patient.",
        "A small robot swept the empty platform before the first bus arrived.",
        "Why would anyone move a piano up four flights of stairs?",
    ),
    "it": (
        "Al mattino una nebbia leggera copriva il fiume e i prati.",
        "Per favore, portami la mappa blu e due piccole lampade.",
        "Mio fratello prepara una torta di mele per tutto il paese.",
        "Quante persone abitano sopra l'ufficio postale?",
    ),
}
"""Sentences, and one whole language, that are not trained on."""

_RANDOM_WORDS_SHARE = 0.6
_RANDOM_WORDS = (3, 11)


def draw_text(generator: np.random.Generator, language: str) -> str:
    """A training sentence in `language`, or random words from its sentences, for more combinations of sounds."""
    sentences = TRAINING[language]
    if generator.random() >= _RANDOM_WORDS_SHARE:
        return sentences[generator.integers(len(sentences))]
    words = vocabulary(sentences)
    count = int(generator.integers(*_RANDOM_WORDS))
    return " ".join(words[index] for index in generator.integers(len(words), size=count)) + "."


def vocabulary(sentences: Sequence[str]) -> list[str]:
    """The distinct words of `sentences`, in order, without punctuation."""
    words = (word.strip(".,:;!?¿") for sentence in sentences for word in sentence.split())
    return [word for word in dict.fromkeys(words) if word]
