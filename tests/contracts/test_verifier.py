"""Every law of every verifier."""


def test_law(law):
    law()
