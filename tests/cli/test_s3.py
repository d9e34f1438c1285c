"""Addresses of S3, as users have them: the environment names a server, here one on this machine."""

import numpy as np
import pytest

from calibrant import Predictions, evaluate, load_predictions, save_predictions
from calibrant.data import load_bundled
from calibrant.errors import InputError
from calibrant.posthoc import load_calibrator
from calibrant.streams import evaluate_stream, open_stream

fsspec = pytest.importorskip("fsspec", reason="fsspec is in the extra scale")
pytest.importorskip("s3fs", reason="s3fs, which fsspec needs for s3://, is not installed")
moto = pytest.importorskip("moto.server", reason="moto[server], which acts as S3, is not installed")
boto3 = pytest.importorskip("boto3", reason="moto[server], which acts as S3, is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning:botocore")]


@pytest.fixture(scope="module")
def store():
    """A bucket of a server that lives as long as the tests of this file."""
    server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
        patch.setenv("AWS_ACCESS_KEY_ID", "any")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        client = boto3.client("s3")
        client.create_bucket(Bucket="bucket")
        yield client
        fsspec.filesystem("s3").clear_instance_cache()
    server.stop()


@pytest.fixture(scope="module")
def predictions():
    return load_bundled("cifar10_val").take(np.arange(400))


def names(store, prefix):
    return sorted(each["Key"] for each in store.list_objects(Bucket="bucket", Prefix=prefix)["Contents"])


@pytest.mark.parametrize("name", ["a.npz", "a.parquet", "a.csv", "a.csv.gz", "a.safetensors", "a.jsonl.gz"])
def test_every_format_is_written_and_read(store, predictions, name):
    save_predictions(predictions, f"s3://bucket/formats/{name}")
    loaded = load_predictions(f"s3://bucket/formats/{name}")
    np.testing.assert_allclose(loaded.to_probs(), predictions.to_probs(), atol=1e-6)
    assert loaded.labels.tolist() == predictions.labels.tolist()
    assert f"formats/{name}" in names(store, "formats/")


def test_what_the_command_line_reads_and_writes_in_a_bucket_is_as_in_a_folder(
    store, predictions, tmp_path, run
):
    places = "s3://bucket/run", str(tmp_path)
    for place in places:
        save_predictions(predictions, f"{place}/val.npz")
        for words in (
            f"calibrate {place}/val.npz --methods temperature --out {place}/honest",
            f"apply {place}/honest/calibrator.safetensors {place}/val.npz --out {place}/new.npz",
        ):
            code, _, err = run(*words.split())
            assert code == 0, err
    both = [load_calibrator(f"{place}/honest/calibrator.safetensors") for place in places]
    assert both[0].temperature == both[1].temperature
    assert evaluate(f"{places[0]}/new.npz").metrics == evaluate(f"{places[1]}/new.npz").metrics
    written = {key.removeprefix("run/") for key in names(store, "run/")}
    assert written == {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}


@pytest.mark.usefixtures("store")
def test_a_folder_of_a_bucket_is_a_stream(predictions):
    for part, rows in enumerate(np.split(np.arange(400), 4)):
        save_predictions(predictions.take(rows), f"s3://bucket/days/{part}.parquet")
    found = evaluate_stream(open_stream("s3://bucket/days"))
    assert found.n == 400
    assert found.metrics["brier"] == pytest.approx(evaluate(predictions).metrics["brier"], abs=1e-6)


@pytest.mark.parametrize("address", ["s3://bucket/absent.npz", "s3://absent/a.npz"])
@pytest.mark.usefixtures("store")
def test_what_is_not_there_is_one_sentence(address):
    with pytest.raises(InputError, match=f"{address}: expected an address that can be read") as caught:
        load_predictions(address)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("store")
def test_a_bucket_that_is_not_there_takes_no_file():
    with pytest.raises(InputError, match="s3://absent/a.npz: expected an address that can be written"):
        save_predictions(Predictions(probs=[[0.9, 0.1]], labels=[0]), "s3://absent/a.npz")
