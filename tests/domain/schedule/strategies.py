"""Random expressions, zones and moments, for properties that must hold of all of them."""

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

ZONES = [
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "Europe/Dublin",  # winter is the exception there
    "Australia/Lord_Howe",  # half an hour
    "Antarctica/Troll",  # two hours
    "America/Santiago",  # at midnight
    "Africa/Casablanca",  # Ramadan is the exception there
    "Asia/Kathmandu",  # +05:45, no changes
    "Pacific/Apia",  # a day was left out
    "America/Scoresbysund",
    "Asia/Gaza",  # the closest changes of all
]

moments = st.datetimes(datetime(1995, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
spans = st.timedeltas(timedelta(0), timedelta(days=3))


def _item(low: int, high: int, *, cyclic: bool = False) -> st.SearchStrategy[str]:
    value = st.integers(low, high)
    ends = st.tuples(value, value).map(lambda pair: pair if cyclic else (min(pair), max(pair)))
    plain = st.one_of(st.just("*"), value.map(str), ends.map(lambda pair: f"{pair[0]}-{pair[1]}"))
    step = st.integers(1, min(high - low + 1, 20))
    return st.one_of(plain, st.builds(lambda body, by: f"{body}/{by}", plain, step))


def _field(item: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(st.just("*"), item, st.lists(item, min_size=1, max_size=3).map(",".join))


seconds = _field(_item(0, 59))
minutes = _field(_item(0, 59))
hours = _field(_item(0, 23))
plain_month_days = _field(_item(1, 31))
plain_months = _field(_item(1, 12))
plain_week_days = _field(_item(0, 6))
month_days = st.one_of(
    plain_month_days,
    st.sampled_from(["L", "LW", "1W", "15W", "31W", "30W", "1,L", "15W,20", "29", "30", "31", "28-31"]),
)
months = st.one_of(_field(_item(1, 12, cyclic=True)), st.sampled_from(["JAN", "NOV-FEB", "feb", "jan-dec/5", "2"]))
week_days = st.one_of(
    _field(_item(0, 6, cyclic=True)),
    st.sampled_from(["7", "5-7", "1-7", "FRI-MON", "mon", "5L", "FRIL", "0L,7L", "5#3", "MON#1,5#5", "7#2", "SAT,SUN"]),
)

five_fields = st.builds(" ".join, st.tuples(minutes, hours, month_days, months, week_days))
six_fields = st.builds(" ".join, st.tuples(seconds, minutes, hours, month_days, months, week_days))
expressions = st.one_of(five_fields, six_fields)
zones = st.sampled_from(ZONES)
