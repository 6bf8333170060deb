"""What PyTorch keeps in torch.utils: `checkpoint` trades time for memory."""

from tracejit.utils import checkpoint as checkpoint

__all__ = ["checkpoint"]
