"""Every law of every scheduler."""


def test_law(law):
    law()
