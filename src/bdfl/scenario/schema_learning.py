"""The tables of a scenario for learning, privacy, the chain, faults and adversaries."""

import fractions
import re
from enum import StrEnum
from typing import Annotated, TypeAlias

from msgspec import Meta

from bdfl.scenario.distributions import Fraction, NotNegative, Parameter, Positive, WholePositive, about
from bdfl.scenario.validation import Section, Text, refuse_value

# Settings of learning: data, partition, model, local training and aggregation.

DIGITS = "digits"
HUB_PREFIX = "hub:"
FLOWER_PREFIX = "flwr:"
MLP = "mlp"
PAPER_CNN = "paper-cnn"
RESNET = "resnet-20"
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_function(text: str) -> bool:
    """Return whether `text` names a user function, as module:function."""
    return _FUNCTION.fullmatch(text) is not None


def is_path(source: str) -> bool:
    """Return whether a data source is a file or folder."""
    return source != DIGITS and not source.startswith(HUB_PREFIX) and not is_function(source)


def is_flower_method(method: str) -> bool:
    """Return whether a partition method is a partitioner of flwr-datasets."""
    return method.startswith(FLOWER_PREFIX)


class Normalisation(StrEnum):
    """Preprocessing of the inputs."""

    CHANNEL = "channel"  # each channel to mean 0 and standard deviation 1 over the training data
    NONE = "none"  # bytes become 0 to 1, floats stay as they are


class PartitionMethod(StrEnum):
    """Built-in methods of partitioning the training data."""

    DIRICHLET = "dirichlet"  # label shares from a Dirichlet law, as in the paper
    IID = "iid"  # uniform draws from all data
    SHARDS = "shards"  # sorted by label and cut into shards, a fixed number for each client
    QUANTITY = "quantity"  # sizes from a Dirichlet law, equal label shares


class PartitionSizes(StrEnum):
    """Sizes of the clients' data sets."""

    FIXED = "fixed"  # clients.samples each
    NATURAL = "natural"  # all data are used; sizes follow from the method


class LocalUnit(StrEnum):
    """Unit of the number of local steps."""

    UPDATES = "updates"  # mini-batch updates
    EPOCHS = "epochs"  # passes over the client's data


class Engine(StrEnum):
    """Execution of the clients of a round; results agree up to rounding."""

    LOOP = "loop"  # one client after the other, or in parallel processes
    VMAP = "vmap"  # all clients in one vectorised call: for small models


class Precision(StrEnum):
    """Arithmetic of the model's passes; weights, updates and aggregation are float32 in any case."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"  # automatic mixed precision


class Device(StrEnum):
    """Device of training and evaluation."""

    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"
    AUTO = "auto"  # cuda if there is one, else mps, else cpu


class Optimizer(StrEnum):
    """Local optimizer; its state begins at zero in every round."""

    SGD = "sgd"
    ADAM = "adam"  # weight decay is part of the gradient
    ADAMW = "adamw"  # weight decay is apart from it


class RateSchedule(StrEnum):
    """Learning rate over the rounds of a run."""

    CONSTANT = "constant"
    STEP = "step"  # times schedule_factor every schedule_rounds
    COSINE = "cosine"  # half a cosine, from learning_rate in round 1 towards 0 after the last


class ServerOptimizer(StrEnum):
    """Step from the aggregate of a round to the next global model; its moments are part of the chain."""

    NONE = "none"  # the aggregate itself
    MOMENTUM = "momentum"  # FedAvgM
    ADAM = "adam"  # FedAdam


class Augmentation(StrEnum):
    """Random change of a training image, drawn anew each time a client uses it."""

    FLIP = "flip"  # mirrored, one time in two
    CROP = "crop"  # shifted by up to an eighth of each side, black beyond the edge


class DataChoice(Section, frozen=True, kw_only=True):
    """The data set and its preprocessing."""

    source: Annotated[
        Text, about("digits, a folder of Parquet files, a .npz file, hub:NAME[:CONFIG] or module:function")
    ] = DIGITS
    input_column: Annotated[Text | None, about("column of the images; none: img, image or input")] = None
    label_column: Annotated[Text | None, about("column of the labels; none: label or labels")] = None
    normalise: Annotated[Normalisation, about("preprocessing of the inputs: channel or none")] = Normalisation.CHANNEL
    test_samples: Annotated[WholePositive | None, about("test samples used, the first; none: all")] = None
    validation_samples: Annotated[
        WholePositive | None,
        about("training samples held out, the last, and evaluated in place of the test set; none: none"),
    ] = None
    inputs: Annotated[
        Text | None, about("type and shape that every input must have, such as uint8 8x8x1; none: any")
    ] = None
    input_range: Annotated[
        tuple[float, float] | None,
        about("least and greatest value of inputs that are not normalised, roughly; none: any"),
    ] = None


PartitionParameter: TypeAlias = bool | int | float | str | tuple[int | float | tuple[int | float, ...], ...]


class PartitionChoice(Section, frozen=True, kw_only=True):
    """The partition of the data among clients."""

    method: Annotated[
        Text, about("dirichlet, iid, shards, quantity or flwr:NAME, a partitioner of flwr-datasets", source="paper")
    ] = PartitionMethod.DIRICHLET.value
    sizes: Annotated[PartitionSizes, about("clients.samples each (fixed), or all data (natural)", source="paper")] = (
        PartitionSizes.FIXED
    )
    dirichlet: Annotated[
        Positive, about("concentration of a client's label shares; small is skewed", source="paper")
    ] = 0.3
    shards_per_client: Annotated[WholePositive, about("shards each client gets, for shards")] = 2
    size_dirichlet: Annotated[Positive, about("concentration of the clients' sizes, for quantity")] = 0.5
    num_labels: Annotated[WholePositive, about("number of labels if no data are loaded", source="paper")] = 10
    parameters: Annotated[dict[str, PartitionParameter], about("the parameters of a partitioner of flwr-datasets")] = {}  # noqa: RUF012 (every scenario gets a copy)


def validate_partition(choice: PartitionChoice) -> None:
    """Raise `ScenarioError` for an unknown method, or for parameters of a method that takes none."""
    is_flower = is_flower_method(choice.method)
    name = choice.method.removeprefix(FLOWER_PREFIX)
    if (is_flower and not name.isidentifier()) or (not is_flower and choice.method not in set(PartitionMethod)):
        ours = ", ".join(method.value for method in PartitionMethod)
        raise refuse_value("partition.method", choice.method, f"one of {ours}, or {FLOWER_PREFIX} and a partitioner")
    if choice.parameters and not is_flower:
        allowed = f"none with {choice.method}: they are for partitioners, such as {FLOWER_PREFIX}DirichletPartitioner"
        raise refuse_value("partition.parameters", choice.parameters, allowed)


MICRO = 10**6  # units of noise, clipping, epsilon and of the server's optimizer on the chain
SERVER_LIMIT = 1000  # on the rate and the epsilon of the server's optimizer

Decay = Annotated[float, Meta(ge=0, lt=1)]
ServerDecay = Annotated[float, Meta(ge=0, le=1 - 1 / MICRO)]
ServerNumber = Annotated[float, Meta(ge=1 / MICRO, le=SERVER_LIMIT)]


class Aggregation(Section, frozen=True, kw_only=True):
    """Aggregation of updates into the next global model."""

    rule: Annotated[
        Text,
        about(
            "mean, median, trimmed-mean, krum, multi-krum, minimum-diameter or your own module:function", source="paper"
        ),
    ] = "mean"
    faulty: Annotated[int, Meta(ge=0), about("faulty updates a robust rule must tolerate in a round")] = 0
    server: Annotated[ServerOptimizer, about("step from the aggregate to the next model: none, momentum or adam")] = (
        ServerOptimizer.NONE
    )
    server_rate: Annotated[ServerNumber | None, about("rate of that step; none: 1 for momentum, 0.01 for adam")] = None
    server_betas: Annotated[tuple[ServerDecay, ServerDecay], about("decay of its moments; momentum uses the first")] = (
        0.9,
        0.99,
    )
    server_epsilon: Annotated[ServerNumber, about("tau of adam, added to the root of the second moment")] = 0.001


class Learning(Section, frozen=True, kw_only=True):
    """The model and its training."""

    model: Annotated[Text, about("mlp, paper-cnn, resnet-20 or your own module:function", source="paper")] = MLP
    flower: Annotated[
        Text | None, about("a Flower client instead of model and data: module:client_fn or module:app")
    ] = None
    flower_model: Annotated[
        Text | None, about("function that makes its initial arrays, module:function; none: the client")
    ] = None
    flower_config: Annotated[
        dict[str, Parameter], about("the Flower client's run_config, and the config of its messages")
    ] = {}  # noqa: RUF012 (every scenario gets a copy)
    hidden: Annotated[tuple[WholePositive, ...], about("sizes of the hidden layers of mlp")] = (64,)
    unit: Annotated[LocalUnit, about("unit of local_steps: mini-batch updates or epochs", source="paper")] = (
        LocalUnit.UPDATES
    )
    local_steps: Annotated[
        WholePositive | None, about("local steps made; none: compute.local_updates, as in the cost model")
    ] = None
    batch: Annotated[WholePositive, about("samples in a mini-batch")] = 64
    learning_rate: Annotated[Positive, about("step eta of the local optimizer", source="paper")] = 0.001
    schedule: Annotated[RateSchedule, about("learning rate over the rounds: constant, step or cosine")] = (
        RateSchedule.CONSTANT
    )
    schedule_rounds: Annotated[WholePositive, about("rounds from one step of the rate to the next")] = 30
    schedule_factor: Annotated[Fraction, about("factor of the learning rate at each step")] = 0.1
    optimizer: Annotated[Optimizer, about("local optimizer: sgd, adam or adamw", source="paper")] = Optimizer.SGD
    momentum: Annotated[float, Meta(ge=0, lt=1), about("momentum of sgd, from zero in every round")] = 0.0
    betas: Annotated[tuple[Decay, Decay], about("decay of the first and second moments of adam and adamw")] = (
        0.9,
        0.999,
    )
    adam_epsilon: Annotated[Positive, about("added to the root of the second moment")] = 1e-8
    weight_decay: Annotated[NotNegative, about("weight of the squared norm of the model")] = 0.0
    proximal: Annotated[
        NotNegative, about("FedProx: weight mu of the squared distance from the round's first model")
    ] = 0.0
    clip_norm: Annotated[Positive | None, about("norm to which the gradient of a mini-batch is clipped; none: not")] = (
        None
    )
    label_smoothing: Annotated[
        float, Meta(ge=0, lt=1), about("share of a label spread evenly over all labels in training")
    ] = 0.0
    augment: Annotated[tuple[Augmentation, ...], about("random changes of training images: flip, crop")] = ()
    personal: Annotated[
        tuple[Text, ...], about("layers that stay with each client: beginnings of parameter names")
    ] = ()
    precision: Annotated[Precision, about("arithmetic of the model: float32, or bfloat16, faster and less exact")] = (
        Precision.FLOAT32
    )
    device: Annotated[Device, about("device of training and evaluation: cpu, cuda, mps or auto")] = Device.CPU
    engine: Annotated[Engine, about("client after client (loop) or all in one call (vmap)")] = Engine.LOOP
    threads: Annotated[WholePositive, about("threads of a training process; part of the result's bits")] = 1
    evaluate_every: Annotated[WholePositive, about("rounds from one evaluation to the next")] = 1
    gradient_every: Annotated[
        int, Meta(ge=0), about("rounds between measurements of the full gradient, for Lemma 1; 0: none")
    ] = 0
    aggregation: Aggregation = Aggregation()


OPTIMIZATION_KEYS = (
    *("schedule", "schedule_rounds", "schedule_factor", "optimizer", "betas", "adam_epsilon"),
    *("proximal", "clip_norm", "label_smoothing", "augment", "personal", "precision", "device"),
)

# Settings of differentially private training, off by default.

ATTO = 10**18  # units of delta there

Noise = Annotated[float, Meta(ge=1 / MICRO, le=10_000)]
Norm = Annotated[float, Meta(ge=1 / MICRO, le=10**9)]
Delta = Annotated[float, Meta(ge=1e-15, lt=0.5)]


class Accountant(StrEnum):
    """Privacy accountant: computes the total privacy loss of a client's steps."""

    RDP = "rdp"  # Renyi divergences of all orders; the best one counts
    PRV = "prv"  # the distribution of the privacy loss itself: tighter, slower


class Privacy(Section, frozen=True, kw_only=True):
    """Differentially private training; on if a noise multiplier or an epsilon is given."""

    noise_multiplier: Annotated[
        Noise | None, about("deviation of the noise over max_grad_norm; none: off, or as epsilon asks")
    ] = None
    epsilon: Annotated[
        Positive | None, about("most any client may spend if it trains in all rounds; none: not bounded")
    ] = None
    max_grad_norm: Annotated[Norm, about("norm to which the gradient of a sample is clipped")] = 1.0
    delta: Annotated[Delta, about("chance that epsilon does not hold; below 1 / samples")] = 1e-5
    accountant: Annotated[Accountant, about("privacy accountant: rdp, or prv, tighter and slower")] = Accountant.RDP

    @property
    def is_on(self) -> bool:
        """True if clients train privately."""
        return self.noise_multiplier is not None or self.epsilon is not None

    @property
    def noise_micro(self) -> int | None:
        """The noise multiplier in millionths; None if not given."""
        return None if self.noise_multiplier is None else round(fractions.Fraction(self.noise_multiplier) * MICRO)

    @property
    def clip_micro(self) -> int:
        """The norm to which gradients are clipped, in millionths."""
        return round(fractions.Fraction(self.max_grad_norm) * MICRO)

    @property
    def delta_atto(self) -> int:
        """Delta in 1e-18."""
        return round(fractions.Fraction(self.delta) * ATTO)


# Settings of the chain, of network faults, and of members that misbehave.


class QuorumRule(StrEnum):
    """Quorum of votes that commits a block."""

    MAJORITY = "majority"  # more than half: safe if members may crash but are honest
    BFT = "bft"  # more than two thirds: safe if under a third of the members are Byzantine


class WorkKind(StrEnum):
    """Hash function of the proof of work."""

    SHA256 = "sha256"
    ARGON2ID = "argon2id"


class Behaviour(StrEnum):
    """Behaviour of an adversarial member. The first ones attack the protocol, those from `LAZY` on the model."""

    HONEST = "honest"
    FORGE = "forge"  # signs in the name of others
    REPLAY = "replay"  # resends statements of earlier rounds
    TWO_BLOCKS = "two-blocks"  # sends different blocks of one attempt to different members
    TWO_VOTES = "two-votes"  # votes for different blocks in one attempt
    TWO_UPDATES = "two-updates"  # sends different updates of one round to different members
    WRONG_MODEL = "wrong-model"  # proposes a global model that is not the aggregate
    WRONG_SCHEDULE = "wrong-schedule"  # proposes a schedule in its own favour
    STALE_UPDATES = "stale-updates"  # proposes updates of an earlier round
    FALSE_WORK = "false-work"  # proposes blocks without mining
    DROP_UPDATES = "drop-updates"  # leaves updates of others out of its blocks
    SILENT = "silent"  # never votes, proposes or answers
    BAD_BLOB = "bad-blob"  # sends NaN, wrong shapes or far too many bytes as its model
    LAZY = "lazy"  # copies another member's model instead of training
    LABEL_FLIP = "label-flip"  # trains on wrong labels
    SIGN_FLIP = "sign-flip"  # sends the negated update
    SCALING = "scaling"  # sends a multiple of the update
    GAUSSIAN = "gaussian"  # sends noise around the model


class Ledger(Section, frozen=True, kw_only=True):
    """Settings of the chain."""

    quorum: Annotated[QuorumRule, about("votes that make a block final: majority or bft", source="paper")] = (
        QuorumRule.MAJORITY
    )
    work: Annotated[WorkKind, about("proof of work: sha256 or argon2id")] = WorkKind.SHA256
    cycles_per_hash: Annotated[
        Positive, about("cycles one hash stands for; alpha over it is the difficulty in hashes", "cycle")
    ] = 1e6
    keep_blocks: Annotated[int, Meta(ge=0), about("newest blocks whose updates a run or a node keeps; 0: of all")] = 0
    max_exchange_s: Annotated[
        Positive | None,
        about("limit on training and upload of a client; none: twice the slowest client's initial time", "s"),
    ] = None


class Faults(Section, frozen=True, kw_only=True):
    """Faults of the network and the machines, up to a given round."""

    loss: Annotated[Fraction, about("share of messages that are lost")] = 0.0
    duplication: Annotated[Fraction, about("share of messages that arrive twice")] = 0.0
    delay_s: Annotated[NotNegative, about("mean extra delay of a message, drawn: it reorders", "s")] = 0.0
    partitions: Annotated[int, Meta(ge=0), about("times the network splits in two and heals")] = 0
    crashes: Annotated[int, Meta(ge=0), about("times a node crashes and restarts from its store")] = 0
    freezes: Annotated[int, Meta(ge=0), about("times a node pauses and resumes")] = 0
    slow: Annotated[int, Meta(ge=0), about("nodes ten times slower than modelled")] = 0
    duration_s: Annotated[Positive, about("mean length of a partition, crash or freeze", "s")] = 1.0
    until_round: Annotated[int, Meta(ge=0), about("last round with faults; 0: all rounds")] = 0


class Adversaries(Section, frozen=True, kw_only=True):
    """Members that misbehave."""

    kind: Annotated[Behaviour, about("behaviour of the adversaries")] = Behaviour.HONEST
    members: Annotated[tuple[int, ...], about("client numbers of the adversaries")] = ()
    strength: Annotated[
        Positive,
        about("factor of sign-flip and scaling; of gaussian: deviation of the noise over the update's own"),
    ] = 10.0
