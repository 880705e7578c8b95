"""Constraints: forbid the tokens that a text cannot go on with."""

from forerun.registry import Registry

CONSTRAINTS = Registry(
    "constraint",
    __name__,
    {
        "json_schema": "json_schema:JsonSchemaCompiler",
        "json_object": "json_object:JsonObjectCompiler",
        "regex": "regex:RegexCompiler",
        "choice": "choice:ChoiceCompiler",
        "lark": "lark:LarkCompiler",
        "gbnf": "gbnf:GbnfCompiler",
        "deny-labels": "deny_labels:DenyLabelsCompiler",
        "syncode": "syncode:SyncodeCompiler",
        "monitors": "monitors:MonitorsCompiler",
    },
)
