# The R kernel: the example in docs/languages.md.
#
# Frames over descriptor 3: u32 LE head length | u32 LE body length | head: JSON | body: bytes. Base R has no JSON and
# needs none: heads are flat, and messages are composed as text.

local({
  # R can open files and pipes, but not an inherited descriptor; `cat` can. It must not be interrupted.
  control_in <- pipe("trap '' INT; exec cat <&3", "rb")
  control_out <- pipe("trap '' INT; exec cat >&3", "wb")
  count <- 0L

  quoted <- function(text) {
    text <- enc2utf8(paste(text, collapse = "\n"))
    text <- gsub("\\", "\\\\", text, fixed = TRUE)
    text <- gsub("\"", "\\\"", text, fixed = TRUE)
    for (code in 1:31) {
      text <- gsub(intToUtf8(code), sprintf("\\u%04x", code), text, fixed = TRUE)
    }
    paste0("\"", text, "\"")
  }

  send <- function(head, body = "") {
    head <- charToRaw(enc2utf8(head))
    body <- charToRaw(enc2utf8(body))
    lengths <- writeBin(c(length(head), length(body)), raw(), size = 4L, endian = "little")
    writeBin(c(lengths, head, body), control_out)
    flush(control_out)
  }

  receive_bytes <- function(n) {
    bytes <- raw(0)
    while (length(bytes) < n) {
      more <- readBin(control_in, "raw", n - length(bytes))
      if (length(more) == 0) quit("no")
      bytes <- c(bytes, more)
    }
    bytes
  }

  receive <- function() {
    lengths <- readBin(receive_bytes(8), "integer", 2L, size = 4L, endian = "little")
    head <- rawToChar(receive_bytes(lengths[1]))
    body <- rawToChar(receive_bytes(lengths[2]))
    Encoding(body) <- "UTF-8"
    list(head = head, body = body)
  }

  # The value of a name in a flat head, as text.
  field <- function(head, name) {
    found <- regmatches(head, regexec(sprintf("\"%s\":(\"([^\"\\\\]*)\"|[0-9a-z]+)", name), head))[[1]]
    if (length(found) == 0) "" else if (nzchar(found[3])) found[3] else found[2]
  }

  run <- function(frame) {
    count <<- count + 1L
    status <- "ok"
    tell <- function(condition, name) {
      call <- conditionCall(condition)
      at <- if (is.null(call)) "" else paste0(" in ", paste(deparse(call), collapse = " "))
      message <- conditionMessage(condition)
      send("{\"op\":\"error\"}", sprintf(
        "{\"name\":%s,\"value\":%s,\"traceback\":%s}",
        quoted(name), quoted(message), quoted(paste0("Error", at, ": ", message))
      ))
    }
    tryCatch({
      shown <- list(value = NULL, visible = FALSE)
      for (expression in parse(text = frame$body, keep.source = FALSE)) {
        shown <- withVisible(eval(expression, globalenv()))
      }
      flush(stdout())
      if (shown$visible && field(frame$head, "echo") == "true") {
        text <- paste(utils::capture.output(print(shown$value)), collapse = "\n")
        send("{\"op\":\"display\",\"kind\":\"result\"}", sprintf("{\"data\":{\"text/plain\":%s}}", quoted(text)))
      }
    }, interrupt = function(condition) {
      status <<- "interrupted"
    }, error = function(condition) {
      status <<- "error"
      tell(condition, class(condition)[1])
    })
    exit_code <- c(ok = 0L, error = 1L, interrupted = 130L)[[status]]
    send(sprintf(
      "{\"op\":\"done\",\"exec_id\":%s,\"status\":\"%s\",\"exit_code\":%d,\"execution_count\":%d}",
      quoted(field(frame$head, "exec_id")), status, exit_code, count
    ))
  }

  send(sprintf(
    "{\"op\":\"hello\",\"protocol\":1,\"language\":\"r\",\"language_version\":\"%s.%s\",\"pid\":%d}",
    R.version$major, R.version$minor, Sys.getpid()
  ))
  repeat {
    # An interrupt between two cells is too late and ignored.
    frame <- tryCatch(receive(), interrupt = function(condition) NULL)
    if (is.null(frame)) next
    switch(field(frame$head, "op"),
      exec = run(frame),
      ping = send(sprintf("{\"op\":\"pong\",\"token\":%s}", field(frame$head, "token"))),
      state = send("{\"op\":\"state\"}"),
      shutdown = quit("no")
    )
  }
})
