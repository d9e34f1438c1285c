"""Ask a language model every question several times, and write the log that Calibrant reads.

    python examples/collect_answers.py questions.csv answers.jsonl --url http://localhost:8000/v1 --model m

Any server with OpenAI's chat interface works; the key, if it needs one, is in the variable ``API_KEY``. The
questions are a CSV file with the columns ``question_id``, ``question``, ``answer`` and perhaps ``subject``. A
run that is interrupted continues where it ended. Answers to one question depend on each other, so:

    calibrant evaluate answers.jsonl --confidence stated --correct is_right --read percent --unit question_id
"""

import argparse
import csv
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

PROMPT = (
    "{question}\n\nEnd with two lines:\nAnswer: <your answer, as short as possible>\n"
    "Confidence: <how likely it is right, from 0 to 100 %>"
)


def main(questions: Path, out: Path, *, url: str, model: str, samples: int = 5) -> int:
    """Write one line for each answer that the log lacks, and return how many were asked."""
    done = {(row["question_id"], row["sample"]) for row in read_log(out)}
    asked = 0
    with questions.open(newline="", encoding="utf-8-sig") as file, out.open("a", encoding="utf-8") as log:
        for row in csv.DictReader(file):
            for sample in range(samples):
                if (row["question_id"], sample) in done:
                    continue
                given, stated = parse(ask(url, model, PROMPT.format(**row)))
                line = {
                    "model": model,
                    "question_id": row["question_id"],
                    "sample": sample,
                    "subject": row.get("subject") or "all",
                    "given": given,
                    "stated": stated,
                    "is_right": folded(given) == folded(row["answer"]),
                }
                log.write(json.dumps(line, ensure_ascii=False) + "\n")
                log.flush()
                asked += 1
    return asked


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines that are there already."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def ask(url: str, model: str, prompt: str) -> str:
    """Return the model's answer to one prompt, drawn at temperature 1."""
    body = {"model": model, "temperature": 1.0, "messages": [{"role": "user", "content": prompt}]}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('API_KEY', '')}"}
    request = Request(f"{url.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers)
    with urlopen(request, timeout=300) as response:
        content: str = json.load(response)["choices"][0]["message"]["content"]
    return content


def parse(text: str) -> tuple[str, float | None]:
    """Return the last answer and the last confidence that a text states; None if it states no number."""
    answers = re.findall(r"^\W*Answer\W*:\s*(.+)$", text, re.IGNORECASE | re.MULTILINE)
    numbers = re.findall(r"^\W*Confidence\W*:\D*(\d+(?:\.\d+)?)", text, re.IGNORECASE | re.MULTILINE)
    return (answers[-1].strip() if answers else ""), (float(numbers[-1]) if numbers else None)


def folded(answer: str) -> str:
    """Return an answer as it is compared: small letters and digits only."""
    return " ".join(re.findall(r"\w+", answer.casefold()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("questions", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--samples", type=int, default=5)
    given = parser.parse_args()
    count = main(given.questions, given.out, url=given.url, model=given.model, samples=given.samples)
    print(f"{count} answers written to {given.out}")
