# The check of check-includes: awk -f THIS -v table=LAYERS LAYERS FILE... inside a source tree.
# Prints one line per include that the table does not allow; its exit status says whether any.

function matches(name, pattern) {
	if (pattern ~ /\*$/)
		return index(name, substr(pattern, 1, length(pattern) - 1)) == 1
	return name == pattern
}
function in_list(name, list,    part, n, i) {
	n = split(list, part, " ")
	for (i = 1; i <= n; i++)
		if (matches(name, part[i]))
			return 1
	return 0
}
function folder_of(name) {
	return name ~ /\// ? substr(name, 1, index(name, "/") - 1) : "."
}
function fault(text) {
	printf "%s:%d: %s\n", FILENAME, FNR, text
	faults++
}
function rest(    i, text) {
	for (i = 3; i <= NF; i++)
		text = text " " $i
	return text
}
# The first row that names a foreign header decides.
function check_foreign(header,    i) {
	for (i = 1; i <= foreigns; i++) {
		if (!matches(header, foreign[i]))
			continue
		if (!in_list(file, wrappers[i]))
			fault("<" header "> belongs to" wrappers[i] " only")
		return
	}
}
function check_ours(header,    name, to, i) {
	name = header
	sub(/\.h$/, "", name)
	to = folder_of(name)
	if (beside != "") {
		if (header !~ /\// || to == beside)
			return
		if (!in_list(to, layers_beside[beside]))
			fault("\"" header "\": " beside " may include" layers_beside[beside])
		return
	}
	if (header !~ /\// || !(to in layer)) {
		fault("\"" header "\": write it FOLDER/NAME.h, of a known layer")
		return
	}
	if (name == file || layer[to] < layer[folder_of(file)])
		return
	if (layer[to] > layer[folder_of(file)]) {
		fault("\"" header "\" is of a higher layer")
		return
	}
	for (i = 1; i <= sames; i++)
		if (matches(file, same[i]) && in_list(name, allowed[i]))
			return
	fault("\"" header "\" is of the same layer and not named in tests/lint/layers")
}
FILENAME == table {
	if ($1 == "layer")
		layer[$2] = $3
	else if ($1 == "beside")
		layers_beside[$2] = rest()
	else if ($1 == "same") {
		same[++sames] = $2
		allowed[sames] = rest()
	} else if ($1 == "foreign") {
		foreign[++foreigns] = $2
		wrappers[foreigns] = rest()
	} else if ($1 !~ /^#/ && NF > 0)
		fault("unknown row " $1)
	next
}
FNR == 1 {
	file = FILENAME
	sub(/\.[ch]$/, "", file)
	beside = ""
	if (folder_of(file) in layers_beside)
		beside = folder_of(file)
	else
		sub(/^src\//, "", file)
	if (beside == "" && !(folder_of(file) in layer))
		fault("its folder is no layer of tests/lint/layers")
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
END {
	if (checked == 0)
		fault("no sources found")
	exit faults > 0
}
