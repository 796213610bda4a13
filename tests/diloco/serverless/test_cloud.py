"""What the executors of rented machines refuse before they ask anybody."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from composer_replication.diloco.serverless import HFJobsExecutor, ModalExecutor, SkyExecutor
from composer_replication.diloco.serverless.cloud import check_image, vendor
from composer_replication.types.errors import BackendError, ConfigError, MissingExtraError
from composer_replication.types.hub_errors import _refusal


@pytest.mark.parametrize(
    ("make", "module", "extra"),
    [(ModalExecutor, "modal", "modal"), (HFJobsExecutor, "huggingface_hub", "hf"), (SkyExecutor, "sky", "sky")],
)
def test_a_missing_client_names_its_extra(make, module, extra, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match="which is not installed") as caught:
        make()
    assert caught.value.fix == f"pip install 'composer-replication[{extra}]'"


def test_a_client_that_is_too_old_names_its_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"needs huggingface_hub 99, and \d"):
        vendor("huggingface_hub", "huggingface_hub", "hf", "99")


@pytest.mark.parametrize(
    "image", ["python:3.11", "ghcr.io/owner/name:1.0", "localhost:5000/a/b", "hf.co/spaces/owner/name", "a@sha256:" + "0" * 64]
)
def test_images_are_named_as_registries_do(image) -> None:
    assert check_image(image) == image


@pytest.mark.parametrize("image", ["", "Python 3.11", "python:", ":3.11", "-x", "a b"])
def test_what_names_no_image_is_refused(image) -> None:
    with pytest.raises(ConfigError, match="names no image"):
        check_image(image)


def test_modal_is_no_registry() -> None:
    with pytest.raises(ConfigError, match=r"there is no image 'modal:python3\.11'") as caught:
        check_image("modal:python3.11")
    assert "'python:3.11'" in str(caught.value.fix)
    assert "modal.Image.debian_slim(python_version='3.11')" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("options", "arguments", "told"),
    [
        ({}, {"rendezvous_uri": "folder"}, "is a folder of this machine, and hf_jobs replicas see none"),
        ({}, {"rendezvous_uri": "file:///folder"}, "is a folder of this machine"),
        ({"secrets": ["NOT_SET_ANYWHERE"]}, {}, "secrets names NOT_SET_ANYWHERE, not set"),
        ({"env": {"REPLICA_RANK": "0"}}, {}, "REPLICA_RANK is in env or secrets"),
    ],
)
def test_what_cannot_be_launched_is_refused(options, arguments, told) -> None:
    executor = HFJobsExecutor(**options)
    with pytest.raises(ConfigError, match=told):
        executor.launch_replicas(2, "m:f", {"rendezvous_uri": "s3://bucket/run", **arguments})


def test_hardware_chooses_the_gpu_of_a_job() -> None:
    with pytest.raises(ConfigError, match=r"by hardware, not by name \(A100\)"):
        HFJobsExecutor(hardware="a10g-large").launch_replicas(2, "m:f", {"rendezvous_uri": "s3://bucket/run"}, gpu="A100")


def test_secrets_are_a_list() -> None:
    with pytest.raises(ConfigError, match="secrets is one text"):
        HFJobsExecutor(secrets="AWS_SECRET_ACCESS_KEY")


@pytest.mark.parametrize(("status", "kind"), [(400, ConfigError), (408, BackendError), (429, BackendError), (503, BackendError)])
def test_a_service_that_wants_to_be_asked_later_is_no_wrong_request(status, kind) -> None:
    error = SimpleNamespace(response=SimpleNamespace(status_code=status), server_message="slow down")
    assert type(_refusal(error, "start jobs")) is kind
