"""Every magnitude of every policy in one place.

Scores are summed with these weights and the highest sum wins; costs therefore carry a minus sign. The unit of the
`fragmentation` policy is one whole GPU: a cost of 1 means that one card's worth of future demand is lost.
"""

# Demand model of the `fragmentation` policy.
#: How much demand beyond what is seen counts in the prices: both its amount and its value.
BEYOND = 0.3
#: Arrivals after which the demand model is made anew: doubling at first, then at a fixed step.
FIRST_REFRESH = 10
LAST_DOUBLING = 320
REFRESH_EVERY = 500
#: Start values: cores per GPU equivalent, their spread, and the mean size of a pod in GPU equivalents.
START_CORES_PER_GPU = 10.0
START_CORES_SPREAD = 5.0
START_POD_SIZE = 1.0
#: Multi-GPU classes that are watched for whole blocks of free cards.
WATCHED_BLOCKS = 24
#: Sets of models that are watched for scarcity, the smallest first: they run short before the larger ones.
WATCHED_MODEL_SETS = 256
#: Stranding looks at this part of the mean need of CPU and of its spread: free cards need not all be used at once.
CPU_NEED = 0.7
CPU_SPREAD = 0.5
#: Pressures weaker than this are not evaluated.
NEGLIGIBLE = 0.005

# Sum of the `fragmentation` policy.
REGRET = -1.0
STRANDING = -2.0
SCARCE_MODEL = -1.0
BLOCK = -2.0
#: Costs closer than this are equal; what follows decides among equals.
GRAIN = 0.02
TIE_NODE_WORTH = -0.003
TIE_CARD_LEFT = -0.2
TIE_CPU_LEFT = -0.0001
#: Where CPU runs out before GPUs do, packing CPU counts this many times more, and for CPU-only pods too. It begins to
#: when the pods of full cards would take this part of all CPU.
CPU_BOUND = 10.0
CPU_AMPLE = 0.85
#: In the choice of the card: how much the share left on it counts beside the regret.
CARD_LEFT = 0.2

#: A pod whose containers cannot share one card is split over several; a node where it need not be always wins.
SPLIT = -1000.0

#: What 1.0 of favour adds to a node: more than all that the scores can differ by, a split and a wanted model included.
FAVOUR = 10_000.0

#: A wanted model outweighs any packing: it gives way only where the pod does not fit.
MODEL_PREFERENCE = 100.0

# `binpack` and `topology`: the fullest card first, then the fullest node; linked cards before either.
CARD_FREE = -1.0
NODE_FREE = -0.1
LINKED_CARDS = 10.0
