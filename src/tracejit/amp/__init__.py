"""Mixed precision under the names of torch.amp: `autocast` and `GradScaler`."""

from __future__ import annotations

from tracejit.amp.grad_scaler import GradScaler
from tracejit.tensor.autocast import autocast, get_autocast_dtype, is_autocast_enabled

__all__ = ["GradScaler", "autocast", "get_autocast_dtype", "is_autocast_enabled"]
