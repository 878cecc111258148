"""How client and server agree on a response format."""

from lakeshare_conformance.case import DELTA, MUST, PARQUET, SHOULD, NothingToTry, expect, on_tables, on_views
from lakeshare_conformance.client import Answer
from lakeshare_conformance.ground import ANNOUNCED, FEATURES, Table, View
from lakeshare_conformance.reply import Reply

SNAPSHOT_FEATURES_OF_PYTHON = "deletionvectors,columnmapping,timestampntz"


@on_tables(MUST, "1.11", "2.5")
def clients_that_ask_for_nothing_get_parquet(table: Table) -> None:
    """Without the header, or with responseformat=parquet, the answer is in parquet format or a refusal by 400."""
    for announced in (None, "responseformat=parquet", "", "asyncquery=false"):
        for answer in (table.metadata(announced), table.query({"limitHint": 0}, announced)):
            if answer.status != 200:
                answer.refusal(400)
            else:
                expect(_format(answer) == PARQUET, answer.asked, "parquet format", _format(answer))


@on_tables(MUST, "1.11", "2.5")
def the_order_of_formats_means_nothing(table: Table) -> None:
    """A list of formats is answered with one of them, the same in either order and for query and metadata."""
    table.expect_readable()
    lists = [
        f"responseformat={formats};readerfeatures={FEATURES}"
        for formats in ("parquet,delta", "delta,parquet")
    ]
    answers = [
        answer for text in lists for answer in (table.metadata(text), table.query({"limitHint": 0}, text))
    ]
    formats = {_format(answer.expect_status(200)) for answer in answers}
    expect(
        len(formats) == 1 and formats <= {PARQUET, DELTA},
        answers[0].asked,
        "one format for all",
        sorted(formats),
    )


@on_tables(MUST, "2.5", "6.1")
def the_python_client_finds_its_format(table: Table) -> None:
    """What the metadata call chooses of delta,parquet the query answers, as the Python client relies on."""
    both = f"responseformat=delta,parquet;readerfeatures={SNAPSHOT_FEATURES_OF_PYTHON}"
    answer = table.metadata(both)
    if answer.status == 400:
        raise NothingToTry(f"{table.name} needs features that the Python client lacks")
    format = _format(answer.expect_status(200))
    alone = f"responseformat=delta;readerfeatures={SNAPSHOT_FEATURES_OF_PYTHON}" if format == DELTA else None
    query = table.query({}, alone).expect_status(200)
    expect(_format(query) == format, query.asked, f"{format} format, as metadata chose", _format(query))


@on_views(MUST, "1.11", formats=(DELTA,))
def capabilities_are_read_in_any_case(view: View) -> None:
    """Keys and values of the header are read in any case, with unknown keys among them."""
    announced = str(ANNOUNCED[DELTA])
    for text in (
        announced.upper(),
        announced.lower(),
        f"lakeshare=1,2;{announced};x",
        announced.replace(";", " ; "),
    ):
        for answer in (view.table.metadata(text), view.table.query({"limitHint": 0}, text)):
            expect(_format(answer.expect_status(200)) == DELTA, answer.asked, "delta format", _format(answer))


@on_tables(MUST, "1.11", "0.19")
def a_header_that_makes_no_sense_is_no_fault_of_the_server(table: Table) -> None:
    """A malformed header is ignored or 400, never 5xx."""
    for text in (
        "=;;==,;",
        "responseformat=",
        "responseformat",
        "responseformat=avro",
        ";" * 5000,
        "a=" + "b," * 3000,
    ):
        for answer in (table.metadata(text), table.query({"limitHint": 0}, text)):
            if answer.status != 200:
                answer.refusal(400, 413, 431)


@on_views(MUST, "2.5", "0.19", formats=(DELTA,))
def features_the_client_lacks_are_refused(view: View) -> None:
    """Delta lines that need reader features go to no client that does not announce them: 400."""
    answer = _query_without_features(view)
    if answer.status == 200:
        # Features that this snapshot makes no use of may be left out of its protocol.
        needed = _needed(Reply(answer))
        expect(not needed, answer.asked, "a refusal, or lines without reader features", needed)
    else:
        answer.refusal(400)


@on_views(SHOULD, "2.5", formats=(DELTA,))
def features_the_client_lacks_are_named(view: View) -> None:
    """The refusal names the reader features the client would have to announce."""
    answer = _query_without_features(view)
    if answer.status == 200:
        raise NothingToTry("no snapshot makes use of its reader features")
    message = answer.refusal(400).lower()
    for feature in _needed(view.metadata):
        expect(feature.lower() in message, answer.asked, f"a refusal that names {feature}", message)


@on_tables(MUST, "2.5", "0.19")
def what_parquet_cannot_carry_is_refused(table: Table) -> None:
    """A table that needs reader features is refused to clients of parquet format, by 400."""
    if table.view(PARQUET) is not None or table.view(DELTA) is None:
        raise NothingToTry("no table is served in delta format only")
    for announced in (None, "responseformat=parquet"):
        table.metadata(announced).refusal(400)
        table.query({}, announced).refusal(400)


def _format(answer: Answer) -> str:
    return answer.capabilities.get("responseformat") or PARQUET


def _needed(reply: Reply) -> list[str]:
    """The reader features that the lines of a reply need."""
    features = [str(feature) for feature in reply.protocol.get("readerFeatures") or []]
    is_second = reply.protocol.get("minReaderVersion") == 2
    return features or (["columnMapping"] if is_second and reply.is_mapped else [])


def _query_without_features(view: View) -> Answer:
    if not _needed(view.metadata):
        raise NothingToTry("no table needs reader features")
    return view.table.query({}, "responseformat=delta")
