"""A web page over checkpoint locations: it reads their files, so queries may run, be stopped or have crashed."""
