"""What every node is worth to the demand: the state the `fragmentation` policy looks at.

Per node: `worth` K, the worth of its free shares; `stranded` S, the part of K that will lack CPU; how many blocks of
whole cards it still holds for each multi-GPU class. Over the cluster: the sums of these. All of it depends on the
present state alone, never on the way that led there: the sums are kept in whole numbers, so that they do not drift.
"""

from __future__ import annotations

import math

import numpy as np

from shoal.placement.columns import SHARES, Columns, Fact, FloatArray, IntArray, Rows, one_by_one
from shoal.placement.weights import CPU_NEED, CPU_SPREAD, NEGLIGIBLE
from shoal.placement.worth.demand import NO_DEMAND, Demand, ModelSet
from shoal.placement.worth.normal import cdf, loss, loss_at

#: Sums of worths are kept in this part of a GPU.
_UNIT = 2.0**-20
_TINY = 1e-12
#: Up to this many changed nodes are valued one by one: plain arithmetic is faster than arrays of one.
_FEW = 8


class Valuation:
    """Node values under one demand, kept up to date with the columns."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._seen = -1
        self.adopt(NO_DEMAND)

    def adopt(self, demand: Demand) -> None:
        """Value everything anew under another demand."""
        self.demand = demand
        #: Where no pod asks for CPU, none can be missing.
        self._needs_cpu = demand.cores_per_gpu > 0
        per_gpu = max(CPU_NEED * demand.cores_per_gpu, _TINY)
        self._gpus_per_cpu = 0.001 / per_gpu
        self._spread = CPU_SPREAD * demand.cores_spread / per_gpu
        self._block_root = 2 * np.sqrt(demand.blocks.part * demand.blocks.gpus)
        self._rebuild()

    def _rebuild(self) -> None:
        columns, blocks = self._columns, self.demand.blocks
        rows = np.arange(columns.rows)
        size = columns.cpu_free.shape[0]
        self._shape = self._shape_now()
        #: Worth of a card by its code (kind and free share).
        self.code_worth = np.tile(self.demand.worth.worth, len(columns.kinds))
        self.code_worth[:SHARES] = 0.0
        self._block_list = list(zip(blocks.gpus.tolist(), blocks.cpu.tolist(), blocks.models, strict=True))
        self._code_worth_at = one_by_one(self.code_worth)
        self.worth, self.stranded = np.zeros(size), np.zeros(size)
        self.worth_at, self.stranded_at = one_by_one(self.worth), one_by_one(self.stranded)
        #: Per node the model it is counted under, and its usable worth.
        self._usable: list[tuple[int, int]] = [(0, 0)] * size
        self._model_usable = [0] * len(columns.models)
        self._members = np.array(
            [[models >> i & 1 for i in range(len(columns.models))] for models in self.demand.model_sets], np.int64
        ).reshape(len(self.demand.model_sets), len(columns.models))
        self._block_allowed = np.array(
            [[models >> i & 1 for i in range(len(columns.models))] for models in blocks.models], np.float64
        ).reshape(len(blocks.models), len(columns.models))
        self._blocks_anywhere = bool(self._block_allowed.all())
        self._block_gpus = blocks.gpus.astype(np.float64)[:, None]
        self._block_cpu = np.maximum(blocks.cpu, 1).astype(np.float64)[:, None]
        #: A class that asks for no CPU is limited by cards alone.
        self._block_without_cpu = np.where(blocks.cpu == 0, np.inf, 0.0)[:, None]
        #: What a node holds that has too few untouched cards for any block: one list for all of them.
        self._no_blocks = [0.0] * len(blocks.models)
        self._least_block = int(blocks.gpus.min()) if len(blocks.gpus) else 0
        self._blocks: list[list[float]] = [self._no_blocks] * size
        self._block_sum = [0.0] * len(blocks.models)
        if columns.rows:
            self._update(rows)
        self._seen = columns.version

    def _shape_now(self) -> tuple[tuple[int, ...], int, int, int]:
        """What the arrays and tables were made for; when it changes everything is made anew."""
        columns = self._columns
        return columns.code.shape, len(columns.kinds), len(columns.models), columns.present

    def catch_up(self) -> bool:
        """Value the nodes that changed. True when everything was made anew: no column computed before is valid."""
        columns = self._columns
        if self._shape != self._shape_now():
            self._rebuild()
            return True
        changed = columns.changed_since(self._seen)
        if changed is None:
            self._rebuild()
            return True
        if len(changed) > _FEW:
            self._update(np.array(changed))
        else:
            for row in changed:
                self._update_one(row)
        self._seen = columns.version
        return False

    def _update(self, rows: Rows) -> None:
        facts = self._columns.node.take(rows, axis=0).T
        cpu, whole, model = facts[Fact.CPU_FREE], facts[Fact.WHOLE], facts[Fact.MODEL]
        worth = _sum_of_each(self.code_worth.take(self._columns.code.take(rows, axis=0)))
        stranded = self.stranding(worth, cpu)
        usable = ((worth - stranded) / _UNIT).astype(np.int64)
        self.worth[rows] = worth
        self.stranded[rows] = stranded
        for row, i, now in zip(rows.tolist(), model.tolist(), usable.tolist(), strict=True):
            self._count(row, i, now)
        if self._block_list:
            held = self.block_count(whole, cpu, model, np.arange(len(self._block_list))).T
            before = np.array([self._blocks[row] for row in rows.tolist()])
            more = np.add.reduce(held - before, axis=0).tolist()
            self._block_sum = [total + part for total, part in zip(self._block_sum, more, strict=True)]
            enough = (whole >= self._least_block).tolist()
            for row, counts, some in zip(rows.tolist(), held.tolist(), enough, strict=True):
                self._blocks[row] = counts if some else self._no_blocks

    def _count(self, row: int, model: int, usable: int) -> None:
        """Enter a node's usable worth into the sums, and take out what was entered before."""
        before, amount = self._usable[row]
        self._model_usable[before] -= amount
        self._model_usable[model] += usable
        self._usable[row] = (model, usable)

    def _update_one(self, row: int) -> None:
        """`_update` for one node, number by number and in the same order."""
        node = self._columns.plain[row]
        worth = stranded = 0.0
        if node.cards:
            worth = _sum([self._code_worth_at[code] for code in node.codes])
            stranded = self.stranding_at(worth, node.cpu_free)
        self.worth_at[row] = worth
        self.stranded_at[row] = stranded
        self._count(row, node.model, int((worth - stranded) / _UNIT))
        held, held_before = self.blocks_of(node.whole, node.cpu_free, node.model), self._blocks[row]
        if held is not held_before:
            for i, (now, before) in enumerate(zip(held, held_before, strict=True)):
                self._block_sum[i] += now - before
            self._blocks[row] = held

    def stranding(self, worth: FloatArray, cpu: IntArray) -> FloatArray:
        """S: the GPU equivalents expected to lack CPU, of nodes with free worth K and free CPU.

        a = CPU_NEED·mu·K, s = CPU_SPREAD·sigma·sqrt(K), S = min(K, s·loss((cpu - a)/s) / (CPU_NEED·mu)); computed in
        GPU equivalents, that is with everything divided by CPU_NEED·mu.
        """
        if not self._needs_cpu:
            return np.zeros(len(worth))
        worth = np.maximum(worth, 0.0)
        spread = np.sqrt(worth)
        spread *= self._spread
        spread += _TINY
        served = cpu * self._gpus_per_cpu
        served -= worth
        served /= spread
        short = loss(served)
        short *= spread
        return np.minimum(worth, short)

    def stranding_at(self, worth: float, cpu: int) -> float:
        """`stranding` of one node: the same arithmetic in the same order."""
        if worth <= 0.0 or not self._needs_cpu:
            return 0.0
        spread = math.sqrt(worth) * self._spread + _TINY
        return min(worth, loss_at((cpu * self._gpus_per_cpu - worth) / spread) * spread)

    def blocks_of(self, whole: int, cpu: int, model: int) -> list[float]:
        """`block_count` of one node, for all classes."""
        if whole < self._least_block or not self._block_list:
            return self._no_blocks
        cpu = max(cpu, 0)
        return [
            (min(whole // gpus, cpu // needed) if needed else whole // gpus) if models >> model & 1 else 0
            for gpus, needed, models in self._block_list
        ]

    def block_count(
        self, whole: FloatArray | IntArray, cpu: FloatArray | IntArray, model: Rows, blocks: Rows
    ) -> FloatArray:
        """How many pods of these multi-GPU classes such nodes can take, [class, node]; whole numbers."""
        by_cpu = np.maximum(cpu, 0) / self._block_cpu[blocks]
        np.floor(by_cpu, out=by_cpu)
        by_cpu += self._block_without_cpu[blocks]
        held = np.minimum(np.floor(whole / self._block_gpus[blocks]), by_cpu)
        if not self._blocks_anywhere:
            held *= self._block_allowed[blocks[:, None], model]
        return held

    @property
    def usable(self) -> float:
        """F: the free GPU equivalents that can be used."""
        return max(1.0, sum(self._model_usable) * _UNIT)

    def keeps_blocks(self, row: int, untouched_used: int, cpu_used: int) -> bool:
        """Whether the node would hold as many blocks for every multi-GPU class with that much less free."""
        held = self._blocks[row]
        if held is self._no_blocks:
            return True
        node = self._columns.plain[row]
        return self.blocks_of(node.whole - untouched_used, node.cpu_free - cpu_used, node.model) == held

    def confining(self, models: ModelSet) -> list[int]:
        """The watched sets that pods are confined to and that do not cover all of these models."""
        return [i for i, watched in enumerate(self.demand.model_sets) if models | watched != watched]

    def scarcity(self, confining: list[int]) -> FloatArray | None:
        """pM by model: how likely the model runs short for pods confined to it, for a pod that is not.

        The largest, over those watched sets A that hold the model, of cdf((H·F - C) / (2·sqrt(H·F·qbar) + 0.5)): demand
        confined to A against what is free in A. None when there is no such set.
        """
        if not confining:
            return None
        members = self._members[confining]
        expected = self.demand.confined[confining] * self.usable
        free = members @ np.array(self._model_usable, np.float64) * _UNIT
        short = cdf((expected - free) / (2 * np.sqrt(expected * self.demand.pod_size) + 0.5))
        result: FloatArray = np.maximum.reduce(members * short[:, None], axis=0)
        return result

    def block_pressure(self) -> FloatArray:
        """pB by multi-GPU class: how likely its blocks run short.

        cdf((h·F - T) / (2·sqrt(h·F·k) + 0.5)): demand at least as hard against the cards in blocks that are free.
        """
        usable = self.usable
        missing = self.demand.blocks.part * usable
        missing -= self.demand.blocks.gpus * self._block_sum
        missing /= self._block_root * math.sqrt(usable) + 0.5
        pressure = cdf(missing)
        pressure *= pressure > NEGLIGIBLE
        return pressure


def _sum(worths: list[float]) -> float:
    """The sum by pairs, then pairs of pairs: in an order of its own, so that it is the same alone as among many."""
    while len(worths) > 1:
        odd = worths[-1:] if len(worths) % 2 else []
        worths = [one + other for one, other in zip(worths[::2], worths[1::2], strict=False)] + odd
    return worths[0]


def _sum_of_each(worths: FloatArray) -> FloatArray:
    """`_sum` of each row."""
    while worths.shape[1] > 1:
        if worths.shape[1] % 2:
            worths = np.pad(worths, ((0, 0), (0, 1)))
        worths = worths[:, ::2] + worths[:, 1::2]
    return worths[:, 0]
