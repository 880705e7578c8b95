"""Every law of every decoder."""


def test_law(law):
    law()
