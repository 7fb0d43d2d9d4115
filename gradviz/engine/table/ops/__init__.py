"""The functions that programs call, made from the table of derivatives.

Most are rows of the table as they are; here stand those that choose a row, convert arguments or compose.
"""

from gradviz.engine.core.tensor import new_tensor
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
