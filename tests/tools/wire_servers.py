"""HTTP servers that speak the wire of vLLM 0.32 and of SGLang 0.5.23, as far as a rollout engine hears it, over our own engine.

What they sample and score is real; only the kernels are not theirs. `python tests/tools/wire_servers.py KIND FOLDER [FAULT...]`
prints `listening on URL`, a line for every request to sample, and ends when its standard input is closed.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import io
import json
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import numpy as np
import torch

from composer_replication.config import ModelConfig
from composer_replication.loss.forward import experts_tensor
from composer_replication.loss.forward.models import load_policy
from composer_replication.rollouts.protocol import SampleRequest
from composer_replication.rollouts.transformers_engine import TransformersEngine

_LOADING = threading.Lock()
"""transformers loads one model at a time in a process."""


class Backend:
    """A model, its adapters, and what is wrong with the server.

    Faults: `raw` (log-probs untempered), `no_ids`, `no_logprobs`, `short` (a log-prob is missing), `nan`, `alien_stop` (a turn
    ends at its first token), `cut` (so does its length), `reads_more` (a token before the prompt), `hold` (never answers), `busy`
    (503 twice), `always_busy`, `crash` (breaks the connection), `keeps` (says it has loaded weights, and has not), `no_loading`,
    `refuses` (500), `page` (answers everything with a page), `few_experts` (of a mixture, those of one token are missing).
    """

    def __init__(self, model: Any, tokenizer: Any, faults: tuple[str, ...] = (), *, key: str = "", name: str = "policy") -> None:
        self.base, self.tokenizer, self.faults, self.key, self.name = model, tokenizer, set(faults), key, name
        self.adapters: dict[str, Any] = {}
        self.label = "default"
        self.asked: list[tuple[str, Any]] = []
        self.under_way = self.most_under_way = 0
        self.gate = threading.Event()
        self.gate.set()
        self.lock, self.count = threading.Lock(), threading.Lock()
        self.refused = 0
        self.asleep = False

    def sleep(self, query: dict[str, list[str]]) -> None:
        """Drop the weights at level 2, and sample nothing before the server has been woken."""
        assert query["mode"] == ["wait"]
        self.asleep = True
        if query["level"] == ["2"]:
            with torch.no_grad():
                for weight in self.base.parameters():
                    weight.zero_()

    def load(self, folder: str) -> None:
        if "keeps" in self.faults:
            return
        assert not self.asleep
        if not Path(folder, "model.safetensors").is_file():
            raise ValueError(f"no weights in {folder}")
        with self.lock, _LOADING:
            self.base, _ = load_policy(ModelConfig(path=folder, device="cpu"))

    def load_adapter(self, name: str, folder: str) -> None:
        from peft import PeftModel

        if not Path(folder, "adapter_config.json").is_file():
            raise ValueError(f"Loading lora {name} failed: No adapter found for {folder}")
        with self.lock:
            self.adapters[name] = PeftModel.from_pretrained(copy.deepcopy(self.base), folder)

    def sample(self, ids: list[int], limit: int, body: dict[str, Any], adapter: str | None, top: int) -> dict[str, Any]:
        """`body` holds temperature, seed and stop_token_ids."""
        assert not self.asleep
        self.gate.wait()
        with self.lock, torch.no_grad():
            model = self.base if adapter is None else self.adapters[adapter]
            engine = TransformersEngine(model, self.tokenizer, stop_ids=body["stop_token_ids"] or [-1])
            limit = min(limit, engine.context_window - len(ids))
            request = SampleRequest(session="s", new_ids=tuple(ids), max_new_tokens=limit, seed=body["seed"])
            (sample,) = engine.sample([request], temperature=body["temperature"])
            logits = model(torch.tensor([[*ids, *sample.ids]])).logits[0, len(ids) - 1 : -1].float()
        divisor = body["temperature"] if body["temperature"] > 0 and "raw" not in self.faults else 1.0
        scores = torch.log_softmax(logits / divisor, -1)
        drawn = list(sample.ids)
        logprobs = scores.gather(1, torch.tensor(drawn)[:, None])[:, 0].tolist()
        best = scores[0].topk(max(top, 1))
        if self.faults & {"cut", "alien_stop"}:
            drawn, logprobs = drawn[:1], logprobs[:1]
        ended = drawn[-1] in body["stop_token_ids"] or "alien_stop" in self.faults
        if "short" in self.faults:
            logprobs = logprobs[1:]
        if "nan" in self.faults:
            logprobs[-1] = float("nan")
        tops = dict(zip(best.indices.tolist(), best.values.tolist(), strict=True)) | {drawn[0]: scores[0, drawn[0]].item()}
        experts = None if sample.experts is None else experts_tensor(sample.experts).numpy()
        return {"ids": drawn, "logprobs": logprobs, "top": tops, "ended": ended, "experts": experts}

    def said(self, experts: Any) -> Any:
        """Return experts as the server says them."""
        return experts[:-1] if "few_experts" in self.faults else experts


def _npy(array: Any) -> str:
    held = io.BytesIO()
    np.save(held, array)
    return base64.b64encode(held.getvalue()).decode()


class _Handler(BaseHTTPRequestHandler):
    """JSON in, JSON out; `answer` is the dialect's."""

    protocol_version = "HTTP/1.1"
    backend: ClassVar[Backend]
    posts: ClassVar[frozenset[str]]

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self._serve(None)

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._serve(json.loads(text) if text else {})

    def _serve(self, body: dict[str, Any] | None) -> None:
        backend, path = self.backend, urlsplit(self.path).path
        backend.asked.append((self.path, body))
        if backend.key and self.headers.get("Authorization") != f"Bearer {backend.key}":
            return self.send(401, {"error": "Unauthorized"})
        if "page" in backend.faults:
            return self.send(200, "<html>")
        if body is None and path in self.posts and "no_loading" not in backend.faults:
            return self.send(405, {"detail": "Method Not Allowed"})
        if path in ("/v1/completions", "/generate"):
            print("sampling", flush=True)
            if "crash" in backend.faults:
                return self.connection.shutdown(socket.SHUT_RDWR)
            if "hold" in backend.faults:
                threading.Event().wait()
            backend.refused += 1
            if "always_busy" in backend.faults or ("busy" in backend.faults and backend.refused <= 2):
                return self.send(503, {"error": {"message": "the queue is full"}})
            if "refuses" in backend.faults:
                return self.send(500, {"error": {"message": "out of memory"}})
        if path == "/tokenize":
            assert body is not None
            return self.send(200, {"tokens": backend.tokenizer.encode(body["prompt"], add_special_tokens=False)})
        with backend.count:
            backend.under_way += 1
            backend.most_under_way = max(backend.most_under_way, backend.under_way)
        try:
            return self.send(*self.answer(path, body))
        finally:
            with backend.count:
                backend.under_way -= 1

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        raise AssertionError

    def send(self, status: int, content: Any) -> None:
        # orjson, which SGLang writes with, has null for what JSON cannot say
        text = content if isinstance(content, str) else json.dumps(content).replace("NaN", "null")
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


class VllmHandler(_Handler):
    """vLLM's OpenAI-compatible server with VLLM_SERVER_DEV_MODE=1 and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True."""

    posts = frozenset({"/v1/completions", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"})

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        backend = self.backend
        loading = "no_loading" not in backend.faults
        match path:
            case "/version":
                return 200, {"version": "0.32.0"}
            case "/health":
                return 200, ""
            case "/sleep" if loading:
                backend.sleep(parse_qs(urlsplit(self.path).query))
                return 200, {"status": "sleeping"}
            case "/wake_up" if loading:
                backend.asleep = False
                return 200, {"status": "awake"}
            case "/v1/models":
                window = backend.base.config.max_position_embeddings
                name = backend.name
                cards = [{"id": name, "root": name, "parent": None, "max_model_len": window, "owned_by": "vllm"}]
                return 200, {"object": "list", "data": cards + [{"id": n, "parent": name} for n in backend.adapters]}
            case "/v1/completions":
                return self._complete(body)
            case "/weight_info" if loading:
                return 200, {"weight_version": backend.label}
            case "/pause" if loading:
                assert parse_qs(urlsplit(self.path).query) == {"mode": ["wait"]}
                backend.gate.clear()
                return 200, {"status": "paused"}
            case "/resume" if loading:
                backend.gate.set()
                return 200, {"status": "resumed"}
            case "/collective_rpc" if loading:
                assert body["method"] == "reload_weights"
                return self._try(lambda: backend.load(body["kwargs"]["weights_path"]), 500, {"results": [None]})
            case "/reset_prefix_cache" if loading:
                return 200, {"success": True}
            case "/update_weight_version" if loading:
                backend.label = body["new_version"]
                return 200, {"success": True, "new_version": backend.label}
            case "/v1/load_lora_adapter" if loading:
                done = f"Success: LoRA adapter '{body['lora_name']}' added successfully."
                return self._try(lambda: backend.load_adapter(body["lora_name"], body["lora_path"]), 404, done)
            case "/v1/unload_lora_adapter" if loading:
                del backend.adapters[body["lora_name"]]
                return 200, "Success"
        return 404, {"detail": "Not Found"}

    def _try(self, work: Any, status: int, done: Any) -> tuple[int, Any]:
        try:
            work()
        except ValueError as error:
            return status, {"error": {"message": str(error), "type": "InternalServerError", "param": None, "code": status}}
        return 200, done

    def _complete(self, body: dict[str, Any]) -> tuple[int, Any]:
        backend, faults = self.backend, self.backend.faults
        if body["model"] not in (backend.name, *backend.adapters):
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist.", "code": 404}}
        assert body["ignore_eos"]
        assert body["return_token_ids"]
        assert (body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (1.0, 0, 0.0, 1.0)
        if max(body["prompt"]) >= backend.base.config.vocab_size:
            return 400, {"error": {"message": f"Token id {max(body['prompt'])} is out of vocabulary", "code": 400}}
        adapter = None if body["model"] == backend.name else body["model"]
        found = backend.sample(body["prompt"], body["max_tokens"], body, adapter, body["logprobs"])
        logprobs = [-9999.0 if p != p else p for p in found["logprobs"]]
        tops = [{f"token_id:{i}": p for i, p in found["top"].items()}] + [{}] * (len(found["ids"]) - 1)
        choice = {
            "index": 0,
            "text": backend.tokenizer.decode(found["ids"]),
            "logprobs": None if "no_logprobs" in faults else {"token_logprobs": logprobs, "top_logprobs": tops},
            "finish_reason": "stop" if found["ended"] else "length",
            "token_ids": None if "no_ids" in faults else found["ids"],
            "prompt_token_ids": ([1] if "reads_more" in faults else []) + body["prompt"],
            "routed_experts": None if found["experts"] is None else _npy(backend.said(found["experts"]).astype("uint8")),
        }
        return 200, {"object": "text_completion", "model": body["model"], "choices": [choice]}


class SglangHandler(_Handler):
    """SGLang's native endpoints, with --enable-lora and --enable-deterministic-inference."""

    posts = frozenset({"/load_lora_adapter", "/unload_lora_adapter", "/update_weights_from_disk"})

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        backend = self.backend
        match path:
            case "/model_info":
                return 200, {"model_path": "policy", "is_generation": True, "weight_version": backend.label}
            case "/server_info":
                options = {"enable_deterministic_inference": True, "enable_lora": "no_loading" not in backend.faults}
                return 200, options | {"version": "0.5.23"}
            case "/v1/models":
                window = backend.base.config.max_position_embeddings
                return 200, {"object": "list", "data": [{"id": "policy", "owned_by": "sglang", "max_model_len": window}]}
            case "/generate":
                return self._generate(body)
            case "/update_weights_from_disk":
                assert body["flush_cache"]
                assert not body["abort_all_requests"]
                try:
                    backend.load(body["model_path"])
                except ValueError as error:
                    return 400, {"success": False, "message": str(error), "num_paused_requests": 0}
                backend.label = body["weight_version"]
                return 200, {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
            case "/load_lora_adapter":
                try:
                    backend.load_adapter(body["lora_name"], body["lora_path"])
                except ValueError as error:
                    return 400, {"success": False, "error_message": str(error), "loaded_adapters": {}}
                return 200, {"success": True, "error_message": None, "loaded_adapters": dict.fromkeys(backend.adapters, "")}
            case "/unload_lora_adapter":
                del backend.adapters[body["lora_name"]]
                return 200, {"success": True, "error_message": None, "loaded_adapters": {}}
        return 404, {"detail": "Not Found"}

    def _generate(self, body: dict[str, Any]) -> tuple[int, Any]:
        backend, faults, options = self.backend, self.backend.faults, body["sampling_params"]
        ids, limit, window = body["input_ids"], options["max_new_tokens"], backend.base.config.max_position_embeddings
        assert body["return_logprob"]
        assert not options.get("ignore_eos"), "it would switch stop_token_ids off too"
        assert (options["top_p"], options["top_k"], options["min_p"], options["repetition_penalty"]) == (1.0, -1, 0.0, 1.0)
        adapter = body.get("lora_path")
        if adapter is not None and adapter not in backend.adapters:
            return 400, {"error": {"message": f"The following requested LoRA adapters are not loaded: {adapter}"}}
        if len(ids) + limit > window:
            message = f"Requested token count exceeds the model's maximum context length of {window} tokens."
            return 400, {"error": {"message": message}}
        limit = min(limit, window - 1 - len(ids) - 1)
        asked = {**options, "seed": options["sampling_seed"]}
        found = backend.sample(ids, limit, asked, adapter, body["top_logprobs_num"])
        ending = {"type": "stop", "matched": found["ids"][-1]} if found["ended"] else {"type": "length", "length": limit}
        about: dict[str, Any] = {
            "id": "r",
            "finish_reason": ending,
            "prompt_tokens": len(ids) + ("reads_more" in faults),
            "completion_tokens": len(found["ids"]),
            "weight_version": backend.label,
        }
        if "no_logprobs" not in faults:
            about["output_token_logprobs"] = [[p, i, None] for p, i in zip(found["logprobs"], found["ids"], strict=False)]
            about["output_top_logprobs"] = [[[p, i, None] for i, p in found["top"].items()]]
        if body.get("return_routed_experts") and found["experts"] is not None:
            about["routed_experts"] = base64.b64encode(backend.said(found["experts"]).astype("<i4").tobytes()).decode()
        reply = {"text": backend.tokenizer.decode(found["ids"]), "output_ids": found["ids"], "meta_info": about}
        if "no_ids" in faults:
            del reply["output_ids"]
        return 200, reply


class WireServer:
    """A server in a thread of this process, while the body runs."""

    def __init__(self, kind: str, backend: Backend, *, port: int = 0) -> None:
        handler = {"vllm": VllmHandler, "sglang": SglangHandler}[kind]
        self.backend = backend
        bound = type(handler.__name__, (handler,), {"backend": backend})
        self._server = ThreadingHTTPServer(("127.0.0.1", port), bound)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> WireServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def main(kind: str, folder: str, *faults: str) -> None:
    torch.set_num_threads(1)
    model, tokenizer = load_policy(ModelConfig(path=folder, device="cpu"))
    with WireServer(kind, Backend(model, tokenizer, faults)) as server, contextlib.suppress(KeyboardInterrupt):
        print(f"listening on {server.url}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
