"""Keys of objects that break whoever quotes, decodes, folds or splits them carelessly."""

AWKWARD_KEYS = [
    "plain/part-00000.snappy.parquet",
    "day=2020-01-01/part-00000-c000.snappy.parquet",
    "a b", " lead and trail ", "a%20b", "a%2Fb", "100%", "%", "%%25", "a+b", "a=b", "a#b", "a?b=c&d=e", "a&b",
    "a;b", "a:b", "a@b", "a,b", "a$b", "a!b", "~", "a*b", "it's", "(a)", "[a]{b}", "a|b", "a^b", "a`b", 'a"b',
    "ü/ñ/é", "日本/語", "e\u0301", "\U0001f600", "\u00a0", "a//b", "//a", "/a", "a/", "a/./b", "a/../b", "./a",
    "a<b>", "a\\b", "..", ".hidden", "-._~", "a\tb", "a\nb", "\x7f", "/".join(["x" * 200] * 4), "X-Amz-Signature=0", "https://host/a?b#c",
]  # fmt: skip
