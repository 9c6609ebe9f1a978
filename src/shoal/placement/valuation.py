"""What every node is worth to the demand: the state the `fragmentation` policy looks at.

Per node: `worth` K, the worth of its free shares; `stranded` S, the part of K that will lack CPU; how many blocks of
whole cards it still holds for each multi-GPU class. Over the cluster: the sums of these. All of it depends on the
present state alone, never on the way that led there: the sums are kept in whole numbers, so that they do not drift.
"""

from __future__ import annotations

import numpy as np

from shoal.placement.columns import SHARES, BoolArray, Columns, FloatArray, IntArray, Rows
from shoal.placement.demand import NO_DEMAND, Demand, ModelSet
from shoal.placement.normal import cdf, loss
from shoal.placement.weights import CPU_NEED, CPU_SPREAD, NEGLIGIBLE

#: Sums of worths are kept in this part of a GPU.
_UNIT = 2.0**-20


class Valuation:
    """Node values under one demand, kept up to date with the columns."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._seen = -1
        self.adopt(NO_DEMAND)

    def adopt(self, demand: Demand) -> None:
        """Value everything anew under another demand."""
        self.demand = demand
        self._rebuild()

    def _rebuild(self) -> None:
        columns, blocks = self._columns, self.demand.blocks
        rows = np.arange(columns.rows)
        size = columns.cpu_free.shape[0]
        self._shape = (columns.code.shape, len(columns.kinds), len(columns.models))
        #: Worth of a card by its code (kind and free share).
        self.code_worth = np.tile(self.demand.worth.worth, len(columns.kinds))
        self.code_worth[:SHARES] = 0.0
        self.worth = np.zeros(size)
        self.stranded = np.zeros(size)
        self._usable = np.zeros(size, np.int64)
        self._model_usable = [0] * len(columns.models)
        self._members = np.array(
            [[models >> i & 1 for i in range(len(columns.models))] for models in self.demand.model_sets], np.int64
        ).reshape(len(self.demand.model_sets), len(columns.models))
        self.block_allowed = np.array(
            [[models >> i & 1 for i in range(len(columns.models))] for models in blocks.models], np.float64
        ).reshape(len(blocks.models), len(columns.models))
        self._blocks_by_cards = (np.arange(columns.slots + 1) // blocks.gpus[:, None]).astype(np.float64)
        self._block_cpu = np.maximum(blocks.cpu, 1).astype(np.float64)[:, None]
        self.blocks = np.zeros((len(blocks.models), size))
        self._block_sum = np.zeros(len(blocks.models))
        if columns.rows:
            self._update(rows)
        self._seen = columns.version

    def catch_up(self) -> bool:
        """Value the nodes that changed. True when everything was made anew: no column computed before is valid."""
        columns = self._columns
        if self._shape != (columns.code.shape, len(columns.kinds), len(columns.models)):
            self._rebuild()
            return True
        changed = columns.changed_since(self._seen)
        if changed is None:
            self._rebuild()
            return True
        if changed:
            self._update(np.array(changed))
            self._seen = columns.version
        return False

    def _update(self, rows: Rows) -> None:
        columns = self._columns
        cpu, whole, model = columns.cpu_free[rows], columns.whole[rows], columns.model[rows]
        worth = self.code_worth.take(columns.code[:, rows]).sum(axis=0)
        stranded = self.stranding(worth, cpu)
        usable = ((worth - stranded) / _UNIT).astype(np.int64)
        self.worth[rows] = worth
        self.stranded[rows] = stranded
        for i, more in zip(model.tolist(), (usable - self._usable[rows]).tolist(), strict=True):
            self._model_usable[i] += more
        self._usable[rows] = usable
        if len(self.blocks):
            held = self.block_count(whole, cpu, model)
            self._block_sum += held.sum(axis=1) - self.blocks[:, rows].sum(axis=1)
            self.blocks[:, rows] = held

    def stranding(self, worth: FloatArray, cpu: IntArray) -> FloatArray:
        """S: the GPU equivalents expected to lack CPU, of nodes with free worth K and free CPU.

        a = CPU_NEED·mu·K, s = CPU_SPREAD·sigma·sqrt(K), S = min(K, s·loss((cpu - a)/s) / (CPU_NEED·mu)).
        """
        per_gpu = max(CPU_NEED * self.demand.cores_per_gpu, 1e-9)
        worth = np.maximum(worth, 0.0)
        spread = np.sqrt(worth)
        spread *= CPU_SPREAD * self.demand.cores_spread
        spread += 1e-12
        short = loss((cpu * 0.001 - per_gpu * worth) / spread)
        short *= spread
        short /= per_gpu
        return np.minimum(worth, short)

    def block_count(self, whole: IntArray, cpu: IntArray, model: Rows) -> FloatArray:
        """How many pods of each multi-GPU class such nodes can take, [class, node]; whole numbers."""
        by_cpu = cpu / self._block_cpu
        np.floor(by_cpu, out=by_cpu)
        held = np.minimum(self._blocks_by_cards.take(whole, axis=1, mode="clip"), by_cpu)
        held *= self.block_allowed.take(model, axis=1)
        return held

    def model(self, rows: Rows) -> Rows:
        return self._columns.model[rows]

    @property
    def usable(self) -> float:
        """F: the free GPU equivalents that can be used."""
        return max(1.0, sum(self._model_usable) * _UNIT)

    def scarcity(self, models: ModelSet) -> FloatArray:
        """pM by model: how likely the model runs short for pods confined to it, for a pod allowed on `models`.

        The largest, over the watched sets A that hold the model but not all of the pod's own models, of
        cdf((H·F - C) / (2·sqrt(H·F·qbar) + 0.5)): demand confined to A against what is free in A.
        """
        concerned = self.concerned(models)
        if not concerned.any():
            return np.zeros(len(self._columns.models))
        members = self._members[concerned]
        expected = self.demand.confined[concerned] * self.usable
        free = members @ np.array(self._model_usable, np.float64) * _UNIT
        short = cdf((expected - free) / (2 * np.sqrt(expected * self.demand.pod_size) + 0.5))
        result: FloatArray = (members * short[:, None]).max(axis=0)
        return result

    def concerned(self, models: ModelSet) -> BoolArray:
        """The watched model sets that do not cover all of these models."""
        return np.array([models | watched != watched for watched in self.demand.model_sets], np.bool_)

    def block_pressure(self) -> FloatArray:
        """pB by multi-GPU class: how likely its blocks run short.

        cdf((h·F - T) / (2·sqrt(h·F·k) + 0.5)): demand at least as hard against the cards in blocks that are free.
        """
        blocks = self.demand.blocks
        expected = blocks.part * self.usable
        free = blocks.gpus * self._block_sum
        short = cdf((expected - free) / (2 * np.sqrt(expected * blocks.gpus) + 0.5))
        short[short <= NEGLIGIBLE] = 0.0
        return short
