"""Every law of every cache."""


def test_law(law):
    law()
