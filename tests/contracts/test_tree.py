"""Every law of every tree."""


def test_law(law):
    law()
