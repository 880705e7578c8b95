"""Trees: the shape and growth of a draft."""

from forerun.registry import Registry

TREES = Registry(
    "tree",
    __name__,
    {
        "chain": "chain:ChainTree",
        "threshold": "threshold:ThresholdTree",
        "svip": "svip:SvipTree",
        "specdec-pp": "specdec_pp:SpecDecPPTree",
        "disco": "disco:DiscoTree",
        "level": "level:LevelTree",
        "static": "static:StaticTree",
        "eagle2": "eagle2:Eagle2Tree",
        "opt-tree": "opt_tree:OptTree",
        "specexec": "specexec:SpecExecTree",
        "dyspec": "dyspec:DySpecTree",
        "sequoia": "sequoia:SequoiaTree",
        "iid": "iid:IidTree",
        "swor": "swor:SworTree",
        "sbs": "sbs:SbsTree",
        "multi-candidate-improved": "multi_candidate_improved:MultiCandidateTree",
    },
)
