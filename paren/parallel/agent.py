"""torchrun's agent: it shows at its end what a rank that failed has written into a file, in the agent's own format."""

from __future__ import annotations

import json
import time
from contextlib import suppress

from paren.environment import agent_file


def tell_agent(message: str) -> None:
    """Lets the agent show a line about the error that this process ends with. The first line stands: what comes later
    is of an end that the cause led to."""
    path = agent_file()
    if path is None:
        return
    text = json.dumps({"message": {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}})
    with suppress(OSError), path.open("x", encoding="utf-8") as file:
        file.write(text)
