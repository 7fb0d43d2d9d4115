"""The functions that programs call, made from the table of derivatives.

Most are rows of the table as they are; here stand those that choose a row, convert arguments or compose.
"""

from gradviz.engine.ops.choice import *
from gradviz.engine.ops.comparison import *
from gradviz.engine.ops.contraction import *
from gradviz.engine.ops.elementwise import *
from gradviz.engine.ops.indexing import *
from gradviz.engine.ops.joining import *
from gradviz.engine.ops.linalg import *
from gradviz.engine.ops.padding import *
from gradviz.engine.ops.pieces import *
from gradviz.engine.ops.products import *
from gradviz.engine.ops.reductions import *
from gradviz.engine.ops.selection import *
from gradviz.engine.ops.shape import *
from gradviz.engine.ops.statistics import *
from gradviz.engine.tensor import new_tensor
