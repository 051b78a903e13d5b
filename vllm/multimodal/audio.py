# SPDX-License-Identifier: Apache-2.0
"""Resampling, which the media pool would do for several sounds at once."""

import os
import threading
from typing import Any

from vllm.upstream.multimodal import audio as upstream
from vllm_lazy_media.amend import amend

_module = amend(upstream)
_resampling = threading.Lock()


# In place, because the release's `AudioResampler` looks the name up there.
@_module.replace
def resample_audio_torchaudio(audio: Any, *, orig_sr: float, target_sr: float) -> Any:
    """The release's resampler, for one sound of the process at a time.

    Any thread but the event loop's; it waits for what others resample, which takes
    about a millisecond for a second of sound.
    """
    # Must stay one at a time, because the release turns oneDNN off meanwhile, for the
    # whole process. Of two that overlap, one is computed with it, which gives other
    # bits, and leaves it turned off for good.
    with _resampling:
        return _module.released.resample_audio_torchaudio(
            audio, orig_sr=orig_sr, target_sr=target_sr
        )


def _renew_lock() -> None:
    # The thread that held it at a fork is not in the child, and would never let go.
    global _resampling
    _resampling = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
