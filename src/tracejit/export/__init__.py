"""Files that hold a function and its weights, and outlive the code that made them.

tj.export.save(model.eval(), (images,), "digits.tj", dynamic={0: "n"})
classify = tj.export.load("digits.tj")          # elsewhere, without the model's source
classify(images)
"""

from tracejit.export.program import Exported, load
from tracejit.export.save import save

__all__ = ["Exported", "load", "save"]
