# SPDX-License-Identifier: Apache-2.0
"""Named media connectors, and the check that one is written for references."""

import inspect
from typing import TypeVar

from vllm.utils.registry import ExtensionManager

_C = TypeVar("_C", bound=type)

# What each fetch method is handed besides the URL.
_DECODERS = {
    "fetch_image": ("media_io",),
    "fetch_audio": ("media_io",),
    "fetch_video": ("media_io",),
    "fetch_video_and_audio": ("video_io", "audio_io"),
}


class MediaConnectorRegistry(ExtensionManager):
    """Connector classes by name.

    A connector written for decoded media is refused when it is registered, and so
    when its plugin is loaded, not at the first request that brings media.
    """

    def __init__(self) -> None:
        super().__init__()
        self._refused: dict[str, TypeError] = {}

    def register(self, name: str):
        """Register the decorated class as `name`.

        Raises:
            TypeError: The class does not take decoders. It names the class, the
                method and the change to make.
        """

        def wrap(cls: _C) -> _C:
            try:
                check_connector(name, cls)
            except TypeError as e:
                # vLLM logs what a plugin raises and goes on, so it must come up
                # again when the connector is asked for.
                self._refused[name] = e
                raise
            self._refused.pop(name, None)
            return super(MediaConnectorRegistry, self).register(name)(cls)

        return wrap

    def check(self, name: str) -> None:
        """Raise now what `load(name)` would raise for a refused connector."""
        refused = self._refused.get(name)
        if refused is not None:
            raise TypeError(str(refused))

    def load(self, cls_name: str, *args, **kwargs):
        self.check(cls_name)
        return super().load(cls_name, *args, **kwargs)


def check_connector(name: str, cls: type) -> None:
    """Raise TypeError where `cls` cannot be called as a connector of references."""
    if "media_io_kwargs" in inspect.signature(cls).parameters:
        raise TypeError(
            f"{_title(name, cls)}: __init__ still takes media_io_kwargs. Remove the "
            "parameter: a connector no longer decodes, and every fetch method is "
            "given the decoder to use. " + _ADVICE
        )
    for method, decoders in _DECODERS.items():
        for variant in (method, f"{method}_async"):
            _check_method(name, cls, variant, decoders)


def _check_method(name: str, cls: type, method: str, decoders: tuple[str, ...]) -> None:
    function = getattr(cls, method, None)
    if function is None:
        raise TypeError(
            f"{_title(name, cls)}: {method} is missing. Add it, or derive the class "
            f"from vllm.multimodal.media.MediaConnector. {_ADVICE}"
        )
    try:
        # self, the URL, the decoders: as the request parser passes them.
        inspect.signature(function).bind(None, "", *decoders)
    except TypeError:
        wanted = ", ".join(("self", "url", *decoders))
        raise TypeError(
            f"{_title(name, cls)}: {method}{inspect.signature(function)} does not "
            f"take the decoder. Change it to {method}({wanted}) and return a "
            f"MediaRef for each decoder. {_ADVICE}"
        ) from None
    for parameter in inspect.signature(function).parameters:
        if parameter in ("video_processor", "image_mode"):
            raise TypeError(
                f"{_title(name, cls)}: {method} still takes {parameter}. Take "
                f"{' and '.join(decoders)} in its place: the decoder holds that "
                f"setting. {_ADVICE}"
            )


def _title(name: str, cls: type) -> str:
    return f"media connector {name!r} ({cls.__module__}.{cls.__qualname__})"


_ADVICE = (
    "Hand the decoder to load_from_url or load_from_url_async to get the MediaRef; "
    "see docs/plugin-migration.md of vllm-lazy-media."
)
