"""The functions that programs call, made from the table of derivatives.

Most functions are a row of the table. The functions written out here choose a row, convert arguments, or combine
several ops.

What holds for all of them: operands are Tensors, and Python numbers where PyTorch takes them. Shapes broadcast and
dtypes are promoted as in PyTorch. `dim` may be negative. A function raises RuntimeError where shapes or dtypes do not
fit, and IndexError where a dimension or an index is out of range, with PyTorch's message.
"""

from gradviz.engine.core.tensor import new_tensor
from gradviz.engine.table.ops.broadcasting import *
from gradviz.engine.table.ops.choice import *
from gradviz.engine.table.ops.comparison import *
from gradviz.engine.table.ops.contraction import *
from gradviz.engine.table.ops.elementwise import *
from gradviz.engine.table.ops.indexing import *
from gradviz.engine.table.ops.joining import *
from gradviz.engine.table.ops.linalg import *
from gradviz.engine.table.ops.padding import *
from gradviz.engine.table.ops.pieces import *
from gradviz.engine.table.ops.products import *
from gradviz.engine.table.ops.reductions import *
from gradviz.engine.table.ops.selection import *
from gradviz.engine.table.ops.shape import *
from gradviz.engine.table.ops.statistics import *
