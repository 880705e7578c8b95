"""What frameworks such as LangChain do with a base URL and a key: the same HTTP, here without their packages."""

import json
import os
import sys

import httpx

from forerun import LLM
from forerun.server.run import in_background
from forerun.server.settings import Settings

model = LLM(sys.argv[1] if len(sys.argv) > 1 else "reference")
with in_background(model, Settings(port=0)) as url:  # `forerun serve` does the same in a program of its own
    os.environ |= {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none needed here"}  # all that they are told

    headers = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    with httpx.Client(base_url=os.environ["OPENAI_BASE_URL"], headers=headers, timeout=60) as web:
        name = web.get("/models").json()["data"][0]["id"]
        ask = {"model": name, "messages": [{"role": "user", "content": "What is a dog?"}], "max_tokens": 30}
        answer = web.post("/chat/completions", json=ask).raise_for_status().json()
        print(answer["choices"][0]["message"]["content"], answer["usage"])

        with web.stream("POST", "/chat/completions", json={**ask, "stream": True}) as parts:
            for line in parts.iter_lines():
                if line.startswith("data: {"):
                    print(json.loads(line[6:])["choices"][0]["delta"].get("content") or "", end="", flush=True)
    print()
