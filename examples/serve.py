"""A service of honest probabilities: one ONNX graph of a classifier and its calibrator, over HTTP.

    pip install fastapi uvicorn onnxruntime
    python examples/serve.py both.onnx --port 8000
    curl -s localhost:8000/predict -d '{"rows": [[0.1, 2.3, -0.4, 1.0]]}' -H 'content-type: application/json'

Neither Calibrant nor PyTorch is needed here: `calibrant export --model` has put everything into the graph.
"""

import argparse
import json

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel


class Rows(BaseModel):
    """What a request sends: rows of numbers, as the classifier takes them."""

    rows: list[list[float]]


class Answer(BaseModel):
    """The predicted class of a row, and the calibrated probability of each class."""

    predicted: str
    confidence: float
    probabilities: dict[str, float]


def make_app(graph: str) -> FastAPI:
    """Return the service; the graph has one input of numbers and the output ``log_probs``."""
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    (wanted,) = session.get_inputs()
    names = json.loads(session.get_modelmeta().custom_metadata_map.get("class_names", "null"))
    app = FastAPI(title="Honest probabilities")

    @app.get("/healthy")
    def healthy() -> dict[str, str]:
        return {"input": wanted.name, "columns": str(wanted.shape[1])}

    @app.post("/predict")
    def predict(given: Rows) -> list[Answer]:
        width = wanted.shape[1]
        if not given.rows or any(len(row) != width for row in given.rows):
            raise HTTPException(422, f"rows: expected at least one row of {width} numbers")
        rows = np.asarray(given.rows, dtype=np.float32)
        if not np.isfinite(rows).all():
            raise HTTPException(422, "rows: expected finite numbers")
        (log_probs,) = session.run(["log_probs"], {wanted.name: rows})
        answers = []
        for row in np.exp(log_probs):
            classes = names or [str(place) for place in range(len(row))]
            best = int(row.argmax())
            shown = {name: float(p) for name, p in zip(classes, row, strict=True)}
            answers.append(Answer(predicted=classes[best], confidence=float(row[best]), probabilities=shown))
        return answers

    return app


def main() -> None:
    """Serve a graph on this machine until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("graph", help="the file that `calibrant export --model` wrote")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    uvicorn.run(make_app(given.graph), host=given.host, port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
