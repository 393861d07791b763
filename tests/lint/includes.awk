# The check of check-includes: awk -f THIS -v table=LAYERS LAYERS FILE... inside a source tree.
# Prints one line per include that the table does not allow and one per permission that no include
# uses; its exit status says whether there was any.

function matches(name, pattern) {
	if (pattern ~ /\*$/)
		return index(name, substr(pattern, 1, length(pattern) - 1)) == 1
	return name == pattern
}
function fault(text) {
	printf "%s:%d: %s\n", FILENAME, FNR, text
	faults++
}
function fault_at(line, text) {
	printf "%s:%d: %s\n", table, line, text
	faults++
}
function in_list(name, list,    part, n, i) {
	n = split(list, part, " ")
	for (i = 1; i <= n; i++)
		if (matches(name, part[i]))
			return 1
	return 0
}
function rest(    i, text) {
	for (i = 3; i <= NF; i++)
		text = text " " $i
	return text
}
# "src/base/span.c" and "engine-worker/core/sched.c" are base/span and core/sched; what lies
# directly in a tree is in the room of the tree's name.
function name_of(path) {
	sub(/\.[ch]$/, "", path)
	if (path ~ /^(src|engine-worker)\/.*\//)
		sub(/^(src|engine-worker)\//, "", path)
	return path
}
function room_of(name) {
	return name ~ /\// ? substr(name, 1, index(name, "/") - 1) : ""
}
function read_room(    i) {
	if ($2 in line_of_room)
		fault("room " $2 " has two rows")
	line_of_room[$2] = FNR
	for (i = 3; i <= NF; i++) {
		if (!($i in line_of_room) || $i == $2)
			fault("room " $2 " may not look up to " $i ", which has no row above it")
		may[$2, $i] = FNR
	}
}
function read_same(    i) {
	if (!(room_of($2) in line_of_room))
		fault($2 " is in no room")
	for (i = 3; i <= NF; i++) {
		sames++
		same_file[sames] = $2
		same_name[sames] = room_of($2) "/" $i
		same_line[sames] = FNR
	}
}
# The first row that names a foreign header decides.
function check_foreign(header,    i, k, n, part) {
	for (i = 1; i <= foreigns; i++) {
		if (!matches(header, foreign[i]))
			continue
		n = split(wrappers[i], part, " ")
		for (k = 1; k <= n; k++)
			if (matches(file, part[k])) {
				wraps[i, k] = 1
				return
			}
		fault("<" header "> belongs to" wrappers[i] " only")
		return
	}
}
function check_same(name,    i, is_allowed) {
	for (i = 1; i <= sames; i++)
		if (name == same_name[i] && matches(file, same_file[i])) {
			same_is_used[i] = 1
			is_allowed = 1
		}
	return is_allowed
}
function check_ours(header,    name, to) {
	name = header
	sub(/\.h$/, "", name)
	if (header !~ /\// && room == "engine-worker")
		name = room "/" name
	to = room_of(name)
	if (!(to in line_of_room)) {
		fault("\"" header "\": write it ROOM/NAME.h, of a known room")
		return
	}
	if (name == file)
		return
	if (to == room) {
		if (!check_same(name))
			fault("\"" header "\" is of the same room and not named in tests/lint/layers")
		return
	}
	if ((room, to) in may)
		may_is_used[room, to] = 1
	else
		fault("\"" header "\": room " room " may not include " to)
}
FILENAME == table {
	if ($1 == "room")
		read_room()
	else if ($1 == "same")
		read_same()
	else if ($1 == "foreign") {
		foreign[++foreigns] = $2
		wrappers[foreigns] = rest()
		foreign_line[foreigns] = FNR
	} else if ($1 !~ /^#/ && NF > 0)
		fault("unknown row " $1)
	next
}
FNR == 1 {
	file = name_of(FILENAME)
	room = room_of(file)
	if (!(room in line_of_room))
		fault("its folder is no room of tests/lint/layers")
	room_is_used[room] = 1
	checked++
}
/^[ \t]*#[ \t]*include[ \t]*[<"]/ {
	header = $0
	sub(/^[^<"]*[<"]/, "", header)
	sub(/[>"].*$/, "", header)
	if ($0 ~ /^[^<]*"/)
		check_ours(header)
	check_foreign(header)
}
function check_unused(    i, k, n, part, pair) {
	for (i in line_of_room)
		if (!(i in room_is_used))
			fault_at(line_of_room[i], "room " i " has no file")
	for (pair in may)
		if (!(pair in may_is_used)) {
			split(pair, part, SUBSEP)
			fault_at(may[pair], "no file of " part[1] " includes " part[2])
		}
	for (i = 1; i <= sames; i++)
		if (!(i in same_is_used))
			fault_at(same_line[i], "no " same_file[i] " includes " same_name[i])
	for (i = 1; i <= foreigns; i++) {
		n = split(wrappers[i], part, " ")
		for (k = 1; k <= n; k++)
			if (!((i, k) in wraps))
				fault_at(foreign_line[i], "no " part[k] " includes <" foreign[i] ">")
	}
}
END {
	if (checked == 0)
		fault("no sources found")
	check_unused()
	exit faults > 0
}
