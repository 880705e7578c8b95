"""Every law of every drafter."""


def test_law(law):
    law()
