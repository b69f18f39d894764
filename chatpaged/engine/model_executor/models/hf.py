"""Any transformers model whose attention can be exchanged, run without a cache of its own on a packed batch.

The model's layers call our attention through `transformers.AttentionInterface`; window, scale, softcap and sinks arrive as
arguments. Everything that would break silently is refused by name.
"""

from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers

# transformers would import these when a model is loaded, with the collector running (gc_pause.py).
import transformers.generation.utils
import transformers.modeling_utils

from chatpaged.engine.end_tokens import end_token_ids
from chatpaged.engine.model_executor.memory import free_memory, is_out_of_memory, require_memory
from chatpaged.engine.model_executor.models.attention_hook import ATTENTION_NAME, register_attention
from chatpaged.engine.model_executor.models.few_rows import use_few_rows_linear
from chatpaged.engine.model_executor.models.geometry import KVGeometry
from chatpaged.engine.model_executor.models.meta_model import build_without_weights, check_fit, check_layers, needed_bytes, shape_error
from chatpaged.engine.model_executor.models.probe import probe_model
from chatpaged.engine.model_executor.models.quantizer import Quantizer, contained_packages, prepare_quantizer, settle_types
from chatpaged.engine.model_executor.models.remote_code import needs_remote_code, remote_model_class
from chatpaged.engine.model_executor.models.rope import freeze_rope
from chatpaged.engine.model_executor.models.stored_quantization import dtype_name, stored_quantization
from chatpaged.engine.model_executor.models.support import check_supported, config_error, refusal, text_config, why
from chatpaged.engine.tokenizer import read_json
from chatpaged.engine.weight_files import WeightFiles, inspect_weights, model_name
from chatpaged.errors import InvalidRequestError, ModelError


class HFModel:
    """A transformers causal language model behind one function.

    Attributes:
        vocab_size: columns of the logits.
        max_model_len: longest sequence.
        stop_token_ids: end tokens that the configuration and the generation configuration name.
        quantizer: what reads its weights, if they were quantised before they came here.
    """

    def __init__(self, model: Any, max_model_len: int, *, dtype: torch.dtype | None = None, quantizer: Quantizer | None = None) -> None:
        """Wraps a model that `load_hf_model` has checked, with weights of type `dtype`; None is one without weights."""
        self._model = model
        self.max_model_len = max_model_len
        self.quantizer = quantizer
        self._dtype = dtype
        head = model.get_output_embeddings()
        if head is None:
            raise refusal(type(model).__name__, "has no output layer")
        # Packed weights have another shape, and quantised layers keep this one.
        self.vocab_size = int(head.out_features if hasattr(head, "out_features") else head.weight.shape[0])
        self.stop_token_ids = frozenset(
            token_id
            for config in (model.config, text_config(model.config), model.generation_config)
            for token_id in _as_ids(getattr(config, "eos_token_id", None))
        )

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, logits_rows: torch.Tensor) -> torch.Tensor:
        """One forward pass over a packed batch. Attention is the one of the current forward context.

        Args:
            input_ids: `[T]`.
            positions: `[T]`.
            logits_rows: `[R]`, tokens whose logits are wanted.

        Returns:
            Logits `[R, vocab_size]`.
        """
        output = self._model(
            input_ids=input_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=logits_rows,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    @property
    def weight_bytes(self) -> int:
        """See `StepModel.weight_bytes`; of experts it is more than is read."""
        total = sum(parameter.nbytes for parameter in self._model.parameters())
        if self.quantizer is not None:  # some of them keep packed weights in buffers
            total += sum(buffer.nbytes for buffer in self._model.buffers())
        embedding, head = self._model.get_input_embeddings(), self._model.get_output_embeddings()
        tied = embedding is None or embedding.weight is getattr(head, "weight", None)
        return int(total if tied else total - embedding.weight.nbytes)

    def geometry(self) -> KVGeometry:
        """Learns from a few tokens what each layer stores, whatever the model is.

        Raises:
            ModelError: the model does something that is not supported.
        """
        layers = text_config(self._model.config).num_hidden_layers
        return probe_model(self._model, self.forward, num_layers=layers, max_model_len=self.max_model_len, dtype=self._dtype)


def load_hf_model(
    directory: Path, *, dtype: torch.dtype, device: torch.device, max_model_len: int | None, trust_remote_code: bool = False
) -> HFModel:
    """Loads a model directory through transformers.

    Args:
        directory: `config.json` and safetensors.
        dtype: type of the weights.
        device: where they go.
        max_model_len: longest sequence; None is the model's context.
        trust_remote_code: run code that comes with the model, where transformers has none.

    Raises:
        ModelError: the architecture or one of its layers is not supported, the files do not fit together, or its weights are quantised in a
            way that cannot be read here.
    """
    silence_transformers()
    register_attention()
    remote = needs_remote_code(directory, trusted=trust_remote_code)
    files = inspect_weights(directory)
    config = load_checked_config(directory, files, remote=remote)
    context = _context(config, max_model_len)
    end_token_ids(directory)  # transformers ignores a generation configuration that is damaged, and loses its end tokens
    quantizer = find_quantizer(directory, config, device, dtype)
    dtype = dtype if quantizer is None else quantizer.dtype
    kinds = _require_room(directory, files, config, quantizer, remote=remote, dtype=dtype, device=device)
    try:
        with warnings.catch_warnings(), contained_packages() if quantizer is not None else nullcontext():
            warnings.simplefilter("ignore")  # nobody could do anything about them
            loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
                directory,
                config=config,
                attn_implementation=ATTENTION_NAME,
                # torch's grouped matrix product, which transformers takes otherwise, has no float64.
                experts_implementation="eager" if dtype == torch.float64 else None,
                dtype=dtype,
                # Packed weights are put where they will stay: not all of them can be moved later.
                device_map=None if quantizer is None else {"": str(device)},
                local_files_only=True,
                trust_remote_code=remote,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name: its own error has none
            )
    except Exception as error:  # likewise: a package that it lacks, a type of tensor it does not know
        if is_out_of_memory(error):
            raise
        raise ModelError(f"cannot load {directory} ({why(error)})") from error
    model, info = loaded
    for name, stored, wanted in sorted(info["mismatched_keys"]):
        raise shape_error(directory, name, tuple(stored), tuple(wanted))
    _check_complete(directory, model, sorted(info["missing_keys"]), sorted(info["unexpected_keys"]))
    model.eval().requires_grad_(requires_grad=False)
    if quantizer is None:
        model.to(device)
    else:
        settle_types(model, kinds, dtype)
    freeze_rope(model, context)
    use_few_rows_linear(model)
    return HFModel(model, context, dtype=dtype, quantizer=quantizer)


def find_quantizer(directory: Path, config: Any, device: torch.device, dtype: torch.dtype) -> Quantizer | None:
    """What reads the weights of a model that are quantised already; None if they are not.

    Args:
        directory: the model.
        config: its own, into which the quantizer's settings are written.
        device: where it shall run.
        dtype: type of activations.

    Raises:
        ModelError: nothing can, with the reason.
    """
    stored = stored_quantization(read_json(directory / "config.json"))
    return None if stored is None else prepare_quantizer(config, stored, device, dtype)


def _require_room(
    directory: Path,
    files: WeightFiles,
    config: Any,
    quantizer: Quantizer | None,
    *,
    remote: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, type]:
    """Refuses weights of other shapes, and a configuration that asks for more memory than there is, before any is taken.

    Returns the classes of the model's modules, by name.
    """
    # A copy: building a model writes into its configuration.
    model = build_without_weights(copy.deepcopy(config), remote_model_class(config, directory) if remote else None, directory)
    check_fit(model, directory, files)
    what = f"the model {model_name(directory)}, as its config.json describes it,"
    packed = quantizer is not None and not quantizer.widens
    needed = needed_bytes(model, dtype, packed=packed)
    if quantizer is not None and quantizer.widens:
        what = f"{what} with its {quantizer.stored.label} weights widened to {dtype_name(dtype)}"
    require_memory(what, needed, free_memory(device), "use a smaller model" if packed else "use a smaller model or another --dtype")
    return {name: type(module) for name, module in model.named_modules()}


def _check_complete(directory: Path, model: Any, missing: list[str], unexpected: list[str]) -> None:
    """Refuses weights that are not there: transformers fills them with random numbers and goes on."""
    if not missing:
        return
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    if len(missing) > 1 and len(unexpected) > 1:
        name = type(model).__name__
        raise refusal(name, f"does not fit the weights in {directory}, which are of another class: it needs {missing[0]}{more}")
    raise ModelError(f"{directory} is incomplete: no weights for {missing[0]}{more}; download the model again")


def load_checked_config(directory: Path, files: WeightFiles, *, remote: bool = False) -> Any:
    """A configuration of a model that is supported.

    Args:
        directory: the model.
        files: its weights.
        remote: as for `load_config`.

    Raises:
        ModelError: as `load_config`; or the model is not supported.
    """
    check_layers(directory, files)
    config = load_config(directory, remote=remote)
    check_supported(config, remote_model_class(config, directory) if remote else None)
    return config


def load_config(directory: Path, *, remote: bool = False) -> Any:
    """A model's configuration as transformers understands it. Its types are checked, its sense is not.

    Args:
        directory: the model.
        remote: run the code that comes with it.

    Raises:
        ModelError: transformers does not know the model, or its configuration is damaged.
    """
    try:
        # A copy: transformers writes the attention's name into the configuration it is given.
        return copy.deepcopy(transformers.AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=remote))
    except Exception as error:  # whatever transformers makes of a configuration that somebody else wrote
        raise config_error(directory, error) from error


def silence_transformers() -> None:
    """Keeps progress bars and advice off the terminal; errors still come as exceptions."""
    logging: Any = transformers.utils.logging  # its functions have no types
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def named_context(config: Any) -> int | None:
    """The longest sequence that a configuration names.

    Raises:
        ModelError: it is no positive whole number.
    """
    context = getattr(text_config(config), "max_position_embeddings", None)
    if context is not None and (not isinstance(context, int) or isinstance(context, bool) or context < 1):
        raise ModelError(f"max_position_embeddings in the model's config.json is {context!r}; it has to be a positive whole number")
    return context


def _context(config: Any, max_model_len: int | None) -> int:
    context = named_context(config)
    if context is None:
        if max_model_len is None:
            raise ModelError("the model's configuration does not name its context (max_position_embeddings); use --max-model-len")
        return max_model_len
    if max_model_len is not None and max_model_len > context:
        raise InvalidRequestError(f"max_model_len {max_model_len} is more than the model's context of {context}")
    return max_model_len if max_model_len is not None else context


def _as_ids(value: int | list[int] | None) -> list[int]:
    return [] if value is None else value if isinstance(value, list) else [value]
