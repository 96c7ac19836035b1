from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("envelopes", "chunk", "unfinished", "acknowledged")
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    envelopes: _containers.RepeatedCompositeFieldContainer[Envelope]
    chunk: Chunk
    unfinished: _containers.RepeatedCompositeFieldContainer[Body]
    acknowledged: int
    def __init__(self, envelopes: _Optional[_Iterable[_Union[Envelope, _Mapping]]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., unfinished: _Optional[_Iterable[_Union[Body, _Mapping]]] = ..., acknowledged: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("sum", "data")
    SUM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    sum: int
    data: bytes
    def __init__(self, sum: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Body(_message.Message):
    __slots__ = ("parts", "offset", "sum")
    PARTS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    offset: int
    sum: int
    def __init__(self, parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., offset: _Optional[int] = ..., sum: _Optional[int] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("kind", "type", "bytes")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Part.Kind]
        VALUES: _ClassVar[Part.Kind]
        INTEGERS: _ClassVar[Part.Kind]
        SHARED: _ClassVar[Part.Kind]
        DELTA: _ClassVar[Part.Kind]
        PAYLOAD: _ClassVar[Part.Kind]
        MASKED: _ClassVar[Part.Kind]
        SUM: _ClassVar[Part.Kind]
    UNKNOWN: Part.Kind
    VALUES: Part.Kind
    INTEGERS: Part.Kind
    SHARED: Part.Kind
    DELTA: Part.Kind
    PAYLOAD: Part.Kind
    MASKED: Part.Kind
    SUM: Part.Kind
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNTYPED: _ClassVar[Part.Type]
        FLOAT32: _ClassVar[Part.Type]
        INT64: _ClassVar[Part.Type]
        UINT32: _ClassVar[Part.Type]
        BYTES: _ClassVar[Part.Type]
        FLOAT16: _ClassVar[Part.Type]
        BFLOAT16: _ClassVar[Part.Type]
    UNTYPED: Part.Type
    FLOAT32: Part.Type
    INT64: Part.Type
    UINT32: Part.Type
    BYTES: Part.Type
    FLOAT16: Part.Type
    BFLOAT16: Part.Type
    KIND_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: Part.Kind
    type: Part.Type
    bytes: int
    def __init__(self, kind: _Optional[_Union[Part.Kind, str]] = ..., type: _Optional[_Union[Part.Type, str]] = ..., bytes: _Optional[int] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("name", "shape", "dtype", "section")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SECTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    section: str
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., section: _Optional[str] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("entries", "shared")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    shared: int
    def __init__(self, entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., shared: _Optional[int] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("register", "heartbeat", "model_request", "update_ready", "update_submission", "task_failed", "evaluation_result", "leave", "renewed", "unmask_share", "unmask_refused", "registered", "rejected", "task_assignment", "model_response", "task_recall", "upload_grant", "task_cancel", "update_ack", "evaluation_request", "run_finished", "renewal", "committee", "unmask_request", "body")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    MODEL_REQUEST_FIELD_NUMBER: _ClassVar[int]
    UPDATE_READY_FIELD_NUMBER: _ClassVar[int]
    UPDATE_SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    TASK_FAILED_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_RESULT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    UNMASK_SHARE_FIELD_NUMBER: _ClassVar[int]
    UNMASK_REFUSED_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    TASK_ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    MODEL_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    TASK_RECALL_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_GRANT_FIELD_NUMBER: _ClassVar[int]
    TASK_CANCEL_FIELD_NUMBER: _ClassVar[int]
    UPDATE_ACK_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_REQUEST_FIELD_NUMBER: _ClassVar[int]
    RUN_FINISHED_FIELD_NUMBER: _ClassVar[int]
    RENEWAL_FIELD_NUMBER: _ClassVar[int]
    COMMITTEE_FIELD_NUMBER: _ClassVar[int]
    UNMASK_REQUEST_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    register: Register
    heartbeat: Heartbeat
    model_request: ModelRequest
    update_ready: UpdateReady
    update_submission: UpdateSubmission
    task_failed: TaskFailed
    evaluation_result: EvaluationResult
    leave: Leave
    renewed: Renewed
    unmask_share: UnmaskShare
    unmask_refused: UnmaskRefused
    registered: Registered
    rejected: Rejected
    task_assignment: TaskAssignment
    model_response: ModelResponse
    task_recall: TaskRecall
    upload_grant: UploadGrant
    task_cancel: TaskCancel
    update_ack: UpdateAck
    evaluation_request: EvaluationRequest
    run_finished: RunFinished
    renewal: Renewal
    committee: Committee
    unmask_request: UnmaskRequest
    body: Body
    def __init__(self, register: _Optional[_Union[Register, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., model_request: _Optional[_Union[ModelRequest, _Mapping]] = ..., update_ready: _Optional[_Union[UpdateReady, _Mapping]] = ..., update_submission: _Optional[_Union[UpdateSubmission, _Mapping]] = ..., task_failed: _Optional[_Union[TaskFailed, _Mapping]] = ..., evaluation_result: _Optional[_Union[EvaluationResult, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., renewed: _Optional[_Union[Renewed, _Mapping]] = ..., unmask_share: _Optional[_Union[UnmaskShare, _Mapping]] = ..., unmask_refused: _Optional[_Union[UnmaskRefused, _Mapping]] = ..., registered: _Optional[_Union[Registered, _Mapping]] = ..., rejected: _Optional[_Union[Rejected, _Mapping]] = ..., task_assignment: _Optional[_Union[TaskAssignment, _Mapping]] = ..., model_response: _Optional[_Union[ModelResponse, _Mapping]] = ..., task_recall: _Optional[_Union[TaskRecall, _Mapping]] = ..., upload_grant: _Optional[_Union[UploadGrant, _Mapping]] = ..., task_cancel: _Optional[_Union[TaskCancel, _Mapping]] = ..., update_ack: _Optional[_Union[UpdateAck, _Mapping]] = ..., evaluation_request: _Optional[_Union[EvaluationRequest, _Mapping]] = ..., run_finished: _Optional[_Union[RunFinished, _Mapping]] = ..., renewal: _Optional[_Union[Renewal, _Mapping]] = ..., committee: _Optional[_Union[Committee, _Mapping]] = ..., unmask_request: _Optional[_Union[UnmaskRequest, _Mapping]] = ..., body: _Optional[_Union[Body, _Mapping]] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("samples", "steps_per_epoch", "labels", "holds", "run", "held_out", "wants_model", "public_key", "instance", "committee", "verify_key")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_FIELD_NUMBER: _ClassVar[int]
    WANTS_MODEL_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    COMMITTEE_FIELD_NUMBER: _ClassVar[int]
    VERIFY_KEY_FIELD_NUMBER: _ClassVar[int]
    samples: int
    steps_per_epoch: int
    labels: _containers.RepeatedScalarFieldContainer[int]
    holds: int
    run: str
    held_out: int
    wants_model: bool
    public_key: bytes
    instance: int
    committee: bytes
    verify_key: bytes
    def __init__(self, samples: _Optional[int] = ..., steps_per_epoch: _Optional[int] = ..., labels: _Optional[_Iterable[int]] = ..., holds: _Optional[int] = ..., run: _Optional[str] = ..., held_out: _Optional[int] = ..., wants_model: bool = ..., public_key: _Optional[bytes] = ..., instance: _Optional[int] = ..., committee: _Optional[bytes] = ..., verify_key: _Optional[bytes] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("task", "steps")
    TASK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    task: int
    steps: int
    def __init__(self, task: _Optional[int] = ..., steps: _Optional[int] = ...) -> None: ...

class ModelRequest(_message.Message):
    __slots__ = ("task", "steps")
    TASK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    task: int
    steps: int
    def __init__(self, task: _Optional[int] = ..., steps: _Optional[int] = ...) -> None: ...

class UpdateReady(_message.Message):
    __slots__ = ("task", "steps", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TASK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    task: int
    steps: int
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, task: _Optional[int] = ..., steps: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class UpdateSubmission(_message.Message):
    __slots__ = ("task", "steps", "metrics", "lr", "committee", "boxes", "received", "trained")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TASK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    LR_FIELD_NUMBER: _ClassVar[int]
    COMMITTEE_FIELD_NUMBER: _ClassVar[int]
    BOXES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    task: int
    steps: int
    metrics: _containers.ScalarMap[str, float]
    lr: float
    committee: bytes
    boxes: _containers.RepeatedScalarFieldContainer[bytes]
    received: float
    trained: float
    def __init__(self, task: _Optional[int] = ..., steps: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., lr: _Optional[float] = ..., committee: _Optional[bytes] = ..., boxes: _Optional[_Iterable[bytes]] = ..., received: _Optional[float] = ..., trained: _Optional[float] = ...) -> None: ...

class TaskFailed(_message.Message):
    __slots__ = ("task", "reason")
    TASK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    task: int
    reason: str
    def __init__(self, task: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class EvaluationResult(_message.Message):
    __slots__ = ("version", "samples", "metrics", "reason")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    version: int
    samples: int
    metrics: _containers.ScalarMap[str, float]
    reason: str
    def __init__(self, version: _Optional[int] = ..., samples: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., reason: _Optional[str] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Renewed(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnmaskShare(_message.Message):
    __slots__ = ("release", "manifest", "groups", "instance", "vote", "sums")
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    VOTE_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    release: int
    manifest: bytes
    groups: _containers.RepeatedScalarFieldContainer[int]
    instance: int
    vote: bytes
    sums: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, release: _Optional[int] = ..., manifest: _Optional[bytes] = ..., groups: _Optional[_Iterable[int]] = ..., instance: _Optional[int] = ..., vote: _Optional[bytes] = ..., sums: _Optional[_Iterable[bytes]] = ...) -> None: ...

class UnmaskRefused(_message.Message):
    __slots__ = ("release", "reason", "tasks")
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    release: int
    reason: str
    tasks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, release: _Optional[int] = ..., reason: _Optional[str] = ..., tasks: _Optional[_Iterable[int]] = ...) -> None: ...

class Registered(_message.Message):
    __slots__ = ("client", "run", "plan", "lease", "shares_model", "site")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    SHARES_MODEL_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    client: int
    run: str
    plan: str
    lease: float
    shares_model: bool
    site: str
    def __init__(self, client: _Optional[int] = ..., run: _Optional[str] = ..., plan: _Optional[str] = ..., lease: _Optional[float] = ..., shares_model: bool = ..., site: _Optional[str] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("reason", "final")
    REASON_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    reason: str
    final: bool
    def __init__(self, reason: _Optional[str] = ..., final: bool = ...) -> None: ...

class TaskAssignment(_message.Message):
    __slots__ = ("task", "base", "steps", "seed", "ask_after", "lr_factor", "hold", "layout")
    TASK_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ASK_AFTER_FIELD_NUMBER: _ClassVar[int]
    LR_FACTOR_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    task: int
    base: int
    steps: int
    seed: int
    ask_after: int
    lr_factor: float
    hold: bool
    layout: Layout
    def __init__(self, task: _Optional[int] = ..., base: _Optional[int] = ..., steps: _Optional[int] = ..., seed: _Optional[int] = ..., ask_after: _Optional[int] = ..., lr_factor: _Optional[float] = ..., hold: bool = ..., layout: _Optional[_Union[Layout, _Mapping]] = ...) -> None: ...

class ModelResponse(_message.Message):
    __slots__ = ("task", "version", "clock", "layout")
    TASK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    task: int
    version: int
    clock: int
    layout: Layout
    def __init__(self, task: _Optional[int] = ..., version: _Optional[int] = ..., clock: _Optional[int] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ...) -> None: ...

class TaskRecall(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: int
    def __init__(self, task: _Optional[int] = ...) -> None: ...

class UploadGrant(_message.Message):
    __slots__ = ("task", "bits")
    TASK_FIELD_NUMBER: _ClassVar[int]
    BITS_FIELD_NUMBER: _ClassVar[int]
    task: int
    bits: int
    def __init__(self, task: _Optional[int] = ..., bits: _Optional[int] = ...) -> None: ...

class TaskCancel(_message.Message):
    __slots__ = ("task", "reason")
    TASK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    task: int
    reason: str
    def __init__(self, task: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class UpdateAck(_message.Message):
    __slots__ = ("task", "accepted", "reason")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    task: int
    accepted: bool
    reason: str
    def __init__(self, task: _Optional[int] = ..., accepted: bool = ..., reason: _Optional[str] = ...) -> None: ...

class EvaluationRequest(_message.Message):
    __slots__ = ("version", "layout")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    version: int
    layout: Layout
    def __init__(self, version: _Optional[int] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ...) -> None: ...

class RunFinished(_message.Message):
    __slots__ = ("reason", "run", "layout")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    reason: str
    run: str
    layout: Layout
    def __init__(self, reason: _Optional[str] = ..., run: _Optional[str] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ...) -> None: ...

class Renewal(_message.Message):
    __slots__ = ("token", "expires")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    token: str
    expires: int
    def __init__(self, token: _Optional[str] = ..., expires: _Optional[int] = ...) -> None: ...

class CommitteeMember(_message.Message):
    __slots__ = ("name", "public_key", "verify_key")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    VERIFY_KEY_FIELD_NUMBER: _ClassVar[int]
    name: str
    public_key: bytes
    verify_key: bytes
    def __init__(self, name: _Optional[str] = ..., public_key: _Optional[bytes] = ..., verify_key: _Optional[bytes] = ...) -> None: ...

class Committee(_message.Message):
    __slots__ = ("run", "epoch", "helpers", "colluding", "least", "colluding_clients", "most", "dominance", "weight_bits", "parameters", "clip")
    RUN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HELPERS_FIELD_NUMBER: _ClassVar[int]
    COLLUDING_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    COLLUDING_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    DOMINANCE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BITS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    epoch: int
    helpers: _containers.RepeatedCompositeFieldContainer[CommitteeMember]
    colluding: int
    least: int
    colluding_clients: int
    most: int
    dominance: float
    weight_bits: int
    parameters: int
    clip: float
    def __init__(self, run: _Optional[bytes] = ..., epoch: _Optional[int] = ..., helpers: _Optional[_Iterable[_Union[CommitteeMember, _Mapping]]] = ..., colluding: _Optional[int] = ..., least: _Optional[int] = ..., colluding_clients: _Optional[int] = ..., most: _Optional[int] = ..., dominance: _Optional[float] = ..., weight_bits: _Optional[int] = ..., parameters: _Optional[int] = ..., clip: _Optional[float] = ...) -> None: ...

class UnmaskEntry(_message.Message):
    __slots__ = ("task", "client", "site", "weight", "box")
    TASK_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    BOX_FIELD_NUMBER: _ClassVar[int]
    task: int
    client: int
    site: str
    weight: int
    box: bytes
    def __init__(self, task: _Optional[int] = ..., client: _Optional[int] = ..., site: _Optional[str] = ..., weight: _Optional[int] = ..., box: _Optional[bytes] = ...) -> None: ...

class UnmaskRequest(_message.Message):
    __slots__ = ("release", "committee", "groups", "entries", "check", "votes")
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    COMMITTEE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    release: int
    committee: bytes
    groups: _containers.RepeatedScalarFieldContainer[int]
    entries: _containers.RepeatedCompositeFieldContainer[UnmaskEntry]
    check: bool
    votes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, release: _Optional[int] = ..., committee: _Optional[bytes] = ..., groups: _Optional[_Iterable[int]] = ..., entries: _Optional[_Iterable[_Union[UnmaskEntry, _Mapping]]] = ..., check: bool = ..., votes: _Optional[_Iterable[bytes]] = ...) -> None: ...
