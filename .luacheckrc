-- Options of luacheck for the scripts as they run: tests/unit/test_lua_check.py.
std = "lua51"
read_globals = {"redis", "cjson", "cmsgpack", "bit", "struct", "KEYS", "ARGV"}
max_line_length = false -- the loader puts the parts on the first line
ignore = {"61"} -- for the same reason: whitespace
