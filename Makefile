# make test    everything a change has to pass
# make demo    what lazy decode saves, on a tiny model
# make bench   stock vLLM against this, measured; QUICK=1 takes under ten minutes
# make serve   vLLM's server; MODEL=... ARGS=..., or a tiny model without MODEL
# make status  what is laid over which vLLM

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

# What the model is, and which arguments it needs, where MODEL does not say.
MODEL ?=
ARGS ?=
TINY_ARGS := --dtype float32 --enforce-eager --max-model-len 8192 \
	--kv-cache-memory-bytes 268435456 --max-num-seqs 16 --trust-request-mm-kwargs

export VLLM_NO_USAGE_STATS := 1
export DO_NOT_TRACK := 1
# The torch wheel is large, and slow connections are no error.
export UV_HTTP_TIMEOUT := 600

# Without its bytecode, each start of vLLM takes half a minute of a processor, and the
# tests start it dozens of times.
unexport PYTHONDONTWRITEBYTECODE

# uv needs seconds where pip needs minutes, but does not read pip's configuration.
define install
$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python $(1) || \
	$(PYTHON) -m pip --python $(BIN)/python install --quiet $(1)
endef

# The directories that mypy checks: it refuses one without Python files.
TYPED := $(foreach dir,vllm vllm_lazy_media tiny examples benchmarks,\
	$(if $(shell find $(dir) -name '*.py' -print -quit 2>/dev/null),$(dir)))

# Not empty for fewer and shorter measurements; BENCH has further arguments.
QUICK ?=
BENCH ?=

.PHONY: setup test lint demo bench serve status clean

setup: $(VENV)/.project

# Without pip, because Debian's python3.11 has none to put into a new environment.
$(VENV)/.uv:
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -m pip --python $(BIN)/python install --quiet uv
	touch $@

$(VENV)/.closure: requirements/cpu.txt | $(VENV)/.uv
	$(call install,--no-deps -r requirements/cpu.txt)
	touch $@

$(VENV)/.tools: requirements/test.txt requirements/dev.txt $(VENV)/.closure
	$(call install,-c requirements/cpu.txt -r requirements/test.txt -r requirements/dev.txt)
	touch $@

$(VENV)/.project: pyproject.toml hatch_build.py vllm_lazy_media.pth $(VENV)/.tools
	$(call install,--no-deps --no-build-isolation -e .)
	touch $@

test: export HF_HUB_OFFLINE := 1
test: setup lint
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(TYPED)

demo: export HF_HUB_OFFLINE := 1
demo: setup
	$(BIN)/python examples/demo.py

bench: export HF_HUB_OFFLINE := 1
bench: setup
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick) $(BENCH)

serve: setup
ifeq ($(MODEL),)
	model=$$($(BIN)/python -m tiny.models | tail -n 1) && \
	HF_HUB_OFFLINE=1 $(BIN)/vllm serve "$$model" $(TINY_ARGS) $(ARGS)
else
	$(BIN)/vllm serve $(MODEL) $(ARGS)
endif

status: setup
	$(BIN)/python -m vllm_lazy_media status

clean:
	rm -rf $(VENV) .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
