"""Objects as the tables that `kubectl get` prints.

Columns and cells are those of the real API server; columns of priority 1 show up with `-o wide`. The descriptions of
the columns are left empty. Built-in kinds without a layout here get name and time of creation, as many do there.
"""

from shoal.embedded.tables.table import table_of

__all__ = ["table_of"]
