"""Every law of every planner."""


def test_law(law):
    law()
