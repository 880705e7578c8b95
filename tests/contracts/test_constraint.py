"""Every law of every constraint."""


def test_law(law):
    law()
