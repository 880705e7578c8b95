"""Schedulers: which requests, how many tokens."""

from forerun.registry import Registry

SCHEDULERS = Registry(
    "scheduler",
    __name__,
    {
        "fcfs": "fcfs:FcfsScheduler",
        "priority": "priority:PriorityScheduler",
        "fair": "fair:FairScheduler",
        "sarathi": "sarathi:SarathiScheduler",
        "splitfuse": "splitfuse:SplitfuseScheduler",
        "flover": "flover:FloverScheduler",
        "skippredict": "skippredict:SkippredictScheduler",
        "andes-qoe": "andes_qoe:AndesQoeScheduler",
        "fastswitch": "fastswitch:FastswitchScheduler",
        "batchllm": "batchllm:BatchllmScheduler",
    },
)
