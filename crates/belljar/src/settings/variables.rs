//! Every variable, declared once: the fresh `.env`, the reference page and what is said of wrong
//! values are made from this.

/// Variables that belong together.
#[derive(Debug)]
pub struct Group {
    pub title: &'static str,
    pub variables: &'static [Variable],
}

#[derive(Debug)]
pub struct Variable {
    pub name: &'static str,
    /// Completes the sentence "expected ...".
    pub accepts: &'static str,
    /// As one would write it.
    pub default: &'static str,
    /// What an empty value means, where the default is empty.
    pub when_empty: &'static str,
    pub help: &'static str,
    /// Its value is never shown.
    pub secret: bool,
}

const fn variable(
    name: &'static str,
    accepts: &'static str,
    default: &'static str,
    help: &'static str,
) -> Variable {
    Variable { name, accepts, default, when_empty: "", help, secret: false }
}

impl Variable {
    const fn when_empty(self, when_empty: &'static str) -> Variable {
        Variable { when_empty, ..self }
    }

    const fn secret(self) -> Variable {
        Variable { secret: true, ..self }
    }
}

/// The declaration of a variable.
pub(super) fn declared(name: &str) -> Option<&'static Variable> {
    GROUPS.iter().flat_map(|group| group.variables).find(|variable| variable.name == name)
}

/// Not for users: read where they are needed, and not mentioned anywhere.
pub(super) const INTERNAL: &[&str] = &[
    // Shows what the zygote writes to its standard error.
    "BELLJAR_DEBUG_ZYGOTE",
    // A canary of the security tests: code in a sandbox must never see it.
    "BELLJAR_TEST_SECRET",
    // Tells the Python package which binary to start.
    "BELLJAR_BINARY",
];

/// Kubernetes adds these to every pod beside a service called `belljar`; they are nobody's mistake.
pub(super) fn is_kubernetes(name: &str) -> bool {
    name == "BELLJAR_PORT"
        || name.starts_with("BELLJAR_PORT_")
        || name.starts_with("BELLJAR_SERVICE_")
}

const A_SIZE: &str = "a size such as 512M or 2G";
const YES_OR_NO: &str = "1 or 0";

pub const GROUPS: &[Group] = &[
    Group {
        title: "Places",
        variables: &[
            variable(
                "BELLJAR_HOME",
                "a directory",
                "",
                "Where environments, images and, unless said otherwise, everything else is kept.",
            )
            .when_empty("/var/lib/belljar for root, ~/.local/share/belljar for others"),
            variable(
                "BELLJAR_STATE_DIR",
                "a directory",
                "",
                "Where the server keeps what must not be lost: its database of sessions, keys and\n\
                 usage, the audit log, and the log of refused requests (refusals.log).",
            )
            .when_empty("`state` below BELLJAR_HOME"),
            variable(
                "SESSIONS_ROOT",
                "a directory",
                "",
                "Where sessions with storage BIND keep their files, one directory each.",
            )
            .when_empty("`sessions` below BELLJAR_HOME"),
            variable(
                "BELLJAR_SESSION_SIZE",
                "a size such as 512M or 2G, at least 4M",
                "4G",
                "What the files of a session with storage BIND may take. Sessions that are there\n\
                 already keep the size that they were made with.",
            ),
            variable(
                "BELLJAR_SESSION_FILES",
                "auto, image or directory",
                "auto",
                "How the files of new sessions with storage BIND are kept. `image`: in `files.ext4`,\n\
                 a file system of its own that takes from the disk what is in it and whose size the\n\
                 kernel enforces; takes root, loop devices and mke2fs. `directory`: in `files`, which\n\
                 everything on the host can read, and whose size is looked at and not enforced.\n\
                 `auto`: an image where that is possible.",
            ),
            variable(
                "BELLJAR_SESSION_RETENTION",
                "seconds, 0 to 315360000",
                "0",
                "After how long a session with storage BIND that has ended is removed with its\n\
                 files. 0: never.",
            ),
            variable(
                "BELLJAR_OUTPUTS_DIR",
                "a directory",
                "outputs",
                "Where the artifacts of ephemeral runs go, one directory each; relative to the\n\
                 current directory. A tenant other than `default` has a directory of its own in it.",
            ),
            variable(
                "BLOBSTORE_DIR",
                "a directory",
                "",
                "Where the content of artifacts is kept, once for identical files of a tenant.",
            )
            .when_empty("`blobstore` below BELLJAR_HOME"),
            variable(
                "ARTIFACTS_DB",
                "a file",
                "",
                "The database of artifacts: their names, sizes, types and where they came from.\n\
                 One server at a time uses it.",
            )
            .when_empty("`artifacts.db` below BELLJAR_STATE_DIR"),
            variable(
                "BELLJAR_EXPORTS_DIR",
                "a directory",
                "exports",
                "Where datasets go that are exported from sessions; relative to the current\n\
                 directory. A tenant other than `default` has a directory of its own in it.",
            ),
            variable(
                "BELLJAR_RUN_DIR",
                "a directory",
                "",
                "Where sockets and locks are kept while sandboxes live.",
            )
            .when_empty("/run/belljar for root, $XDG_RUNTIME_DIR/belljar for others"),
        ],
    },
    Group {
        title: "Sandboxes",
        variables: &[
            variable(
                "BELLJAR_MEMORY",
                "a size such as 512M or 2G, at least 16M",
                "512M",
                "Memory of a sandbox, files in RAM included.",
            ),
            variable("BELLJAR_CPUS", "0.01 to 1024", "1", "Processors of a sandbox."),
            variable(
                "BELLJAR_PIDS",
                "a number from 4 to 100000",
                "256",
                "Processes and threads of a sandbox.",
            ),
            variable(
                "TMPFS_SIZE_MB",
                "a number from 1 to 16777216",
                "",
                "Megabytes of files that a sandbox may keep in RAM.\n\
                 They count as memory, of which they may take three quarters: a size that is set\n\
                 here raises BELLJAR_MEMORY as needed, or is refused where that is set as well and\n\
                 too small.",
            )
            .when_empty("1024, or three quarters of the memory where that is less"),
            variable(
                "BELLJAR_BACKEND",
                "auto, native or docker",
                "auto",
                "What makes sandboxes. `native` builds them from namespaces, `docker` asks a Docker or\n\
                 Podman engine. `auto` is native where that can enforce limits, otherwise docker\n\
                 where an engine with the image answers.",
            ),
            variable(
                "SANDBOX_IMAGE",
                "the name of an image",
                "",
                "What sandboxes are made from. `host` is this machine's own /usr with the environment\n\
                 that `belljar setup` made, and so is `sandbox:latest` unless there is such an image or\n\
                 docker is used; others come from `belljar image build`, `pull` or `import`, and docker\n\
                 takes any image of its engine.",
            )
            .when_empty("host, or belljar/sandbox:latest with docker"),
            variable(
                "SANDBOX_IMAGE_NAME",
                "the name of an image",
                "",
                "Another name of SANDBOX_IMAGE, which wins where both are set.",
            )
            .when_empty("SANDBOX_IMAGE"),
            variable(
                "BELLJAR_IMAGES",
                "names of images, with * for any part of one",
                "",
                "What sessions may ask for besides the default.",
            )
            .when_empty("nothing else"),
            variable(
                "BELLJAR_IMAGE_LIMIT",
                "a size such as 512M or 2G, at least 1M",
                "32G",
                "What an image may unpack to at most.",
            ),
            variable(
                "DOCKER_HOST",
                "an address such as unix:///var/run/docker.sock or tcp://localhost:2375",
                "",
                "Where the container engine is.",
            )
            .when_empty("unix:///var/run/docker.sock"),
            variable(
                "BELLJAR_DOCKER_RUNTIME",
                "the name of a runtime of the engine",
                "",
                "Which runtime of the container engine runs sandboxes: `runsc` for gVisor.",
            )
            .when_empty("the engine's default"),
            variable(
                "BELLJAR_SOCKET_DIR",
                "a directory",
                "",
                "Where the sockets to containers go. Nobody but the server's user may be able to enter\n\
                 it (mode 0700), and it must be on a Linux file system: one of Windows cannot hold\n\
                 sockets.",
            )
            .when_empty("doors in BELLJAR_RUN_DIR"),
            variable(
                "BELLJAR_GPUS",
                "all, a number, or device=0,1",
                "",
                "GPUs for sandboxes, where the container engine has any.",
            )
            .when_empty("none"),
            variable(
                "BELLJAR_REGISTRY_USER",
                "a name",
                "",
                "Who `belljar image pull` is at a registry.",
            )
            .when_empty("as `docker login` left it"),
            variable(
                "BELLJAR_REGISTRY_PASSWORD",
                "a password or token",
                "",
                "The password of BELLJAR_REGISTRY_USER.",
            )
            .when_empty("none")
            .secret(),
            variable(
                "BELLJAR_CGROUP_PARENT",
                "a name",
                "belljar",
                "Name of the control group below which sandboxes are put.",
            ),
            variable(
                "BELLJAR_STRICT",
                YES_OR_NO,
                "0",
                "1: refuse to run anything while a limit cannot be enforced. 0: warn.",
            ),
        ],
    },
    Group {
        title: "Python of the sandboxes",
        variables: &[
            variable(
                "BELLJAR_PYTHON",
                "a program",
                "python3",
                "The interpreter that `belljar setup` builds the sandboxes' environment on.",
            ),
            variable(
                "BELLJAR_PACKAGES",
                "names separated by spaces",
                "numpy pandas pyarrow matplotlib scikit-learn scipy pillow openpyxl ipython",
                "Packages that `belljar setup` installs for sandboxes.",
            ),
            variable(
                "BELLJAR_PRELOAD",
                "names separated by spaces",
                "numpy pandas pyarrow pyarrow.parquet matplotlib matplotlib.pyplot sklearn scipy \
                 PIL openpyxl IPython",
                "Modules that every kernel starts with already loaded.\n\
                 More modules make importing them free and the zygote larger.",
            ),
        ],
    },
    Group {
        title: "Sessions",
        variables: &[
            variable(
                "SESSION_STORAGE",
                "TMPFS or BIND",
                "TMPFS",
                "Where the files of a session are, unless it asks for something else.\n\
                 TMPFS: in RAM, gone with the session. BIND: on disk, below SESSIONS_ROOT.",
            ),
            variable(
                "DATASET_ACCESS",
                "NONE, LOCAL_RO or API",
                "NONE",
                "How datasets come into a session, unless it asks for something else.\n\
                 LOCAL_RO: DATASETS_HOST_RO is shown at /data, read-only. API: staged on demand\n\
                 into /session/data; API_TMPFS means the same.",
            ),
            variable(
                "DATASETS_HOST_RO",
                "a directory",
                "",
                "The directory of datasets that LOCAL_RO shows.",
            )
            .when_empty("none"),
            variable(
                "BELLJAR_DATASET_SIZE",
                "a size such as 512M or 2G, at least 1",
                "8G",
                "The largest dataset that is staged.",
            ),
            variable(
                "BELLJAR_DATASET_CACHE",
                "a directory",
                "",
                "Where staged datasets are kept for the tenant's next session.",
            )
            .when_empty("`datasets` below BELLJAR_HOME"),
            variable(
                "BELLJAR_DATASET_CACHE_SIZE",
                A_SIZE,
                "16G",
                "How much of them; what was not used for the longest time goes first.",
            ),
            variable(
                "BELLJAR_DATASET_SOURCES",
                "a JSON object, or @ and the path of a file with one",
                "",
                "Where the server itself fetches datasets from; only the server looks at it.\n\
                 Each key is the name of a dataset, or a prefix of names, which ends in `/` or `*`;\n\
                 the longest that fits decides.\n\
                 Each value is a URL, or an object with these keys:\n\
                 `url`: http or https. `{name}` stands for what follows the prefix, `{path}` for\n\
                 the same with its slashes kept, `{id}` for the whole name; a prefix needs one of\n\
                 them, in the path or query.\n\
                 `headers`: sent to the host of `url` and to no other. `${NAME}` in a value is the\n\
                 variable of that name in the server's environment or `.env`.\n\
                 `allow`: hosts, with or without a port, that may have a private, loopback or\n\
                 link-local address; all others are refused if any of their addresses is not\n\
                 public, and so is where they redirect to.\n\
                 `timeout_s`: seconds for a whole dataset, 1 to 86400, or 300 if left out.\n\
                 `max_bytes`: the largest dataset, such as \"512M\", or \"2G\" if left out.\n\
                 Example: {\"sales/\": {\"url\": \"https://data.example.com/{name}.parquet\",\n\
                 \"headers\": {\"Authorization\": \"Bearer ${SALES_TOKEN}\"}},\n\
                 \"plain/\": \"https://files.example.com/{path}\"}",
            )
            .when_empty("nowhere")
            .secret(),
            variable(
                "BELLJAR_WORKSPACES",
                "absolute paths of directories, separated by colons",
                "",
                "Directories of this machine that sessions may have at /workspace to read and to write, and\n\
                 so may all below them. What code makes there belongs to whom the directory belongs to.\n\
                 Parts of the system, home directories themselves and the server's own are refused. Takes\n\
                 the native backend and the image `host`. Local servers that the Python package starts\n\
                 allow what their user can reach.",
            )
            .when_empty("none"),
            variable(
                "BELLJAR_TTL",
                "seconds, 1 to 315360000",
                "3600",
                "How long a session lives on after its last use, unless it asks for something\n\
                 else.",
            ),
            variable(
                "BELLJAR_MAX_TTL",
                "seconds, 1 to 315360000",
                "2592000",
                "The longest such life that a session can ask for.",
            ),
            variable(
                "BELLJAR_IDLE_TIMEOUT",
                "seconds, 0 to 315360000",
                "",
                "After how long without use a session ends even earlier. 0: never.",
            )
            .when_empty("never"),
            variable(
                "IDLE_HIBERNATE_SEC",
                "seconds, 0 to 315360000",
                "900",
                "After how long without use the large values of a session's Python kernel go to\n\
                 disk, below /session/data. They are back before code runs again. Only where that is\n\
                 a disk (storage BIND, a workspace): elsewhere files are memory too. 0: never.",
            ),
            variable(
                "BELLJAR_SPILL_DF_BYTES",
                A_SIZE,
                "1M",
                "How large a DataFrame, Series or Arrow table must be for that.",
            ),
            variable(
                "BELLJAR_SPILL_NP_BYTES",
                A_SIZE,
                "1M",
                "How large an array must be for that.",
            ),
            variable(
                "BELLJAR_HIBERNATE_SEC",
                "seconds, 0 to 315360000",
                "1800",
                "After how long without use a session is put to sleep: it becomes files, and uses\n\
                 neither memory nor processor until somebody needs it. 0: only when asked to.",
            ),
            variable(
                "BELLJAR_FROZEN_DIR",
                "a directory",
                "",
                "Where those files are kept, and checkpoints.",
            )
            .when_empty("frozen in BELLJAR_STATE_DIR"),
            variable(
                "BELLJAR_FROZEN_SIZE",
                A_SIZE,
                "32G",
                "How much of them. Beyond it, nothing is put to sleep or forked.",
            ),
            variable(
                "BELLJAR_TENANT_FROZEN_SIZE",
                A_SIZE,
                "8G",
                "How much of them a tenant can have, as blocks on the disk. 0: no limit but that.",
            ),
            variable(
                "BELLJAR_TENANT_SLEEPING",
                "a number",
                "100",
                "How many sleeping sessions a tenant can have whose key says nothing else. 0: no limit.",
            ),
            variable(
                "BELLJAR_ALONE",
                "seconds, 0 to 315360000",
                "86400",
                "How long sandboxes wait for a server to come back after theirs has gone.",
            ),
            variable(
                "BELLJAR_POOL",
                "a number from 0 to 1000",
                "4",
                "Warm sandboxes that the server keeps ready, so that nobody waits for theirs.",
            ),
        ],
    },
    Group {
        title: "Network of the sandboxes",
        variables: &[
            variable(
                "BELLJAR_NETWORK",
                "none, open, or hosts separated by spaces",
                "none",
                "Where code in a sandbox may go, unless its session asks for something else; also\n\
                 for `belljar run`. A host is a name, `*.` and a name, or an address, with or\n\
                 without a port: example.org *.example.com:443 10.0.0.5:8080. Without a port it\n\
                 means 80 and 443. `open`: every public address. Private, loopback and link-local\n\
                 addresses are reached only if they are listed as such.",
            ),
            variable(
                "BELLJAR_MAX_NETWORK",
                "none, open, or hosts separated by spaces",
                "",
                "The most that a session can ask for. Private addresses that may be asked for\n\
                 stand beside `open`: open 10.0.0.5:8080.",
            )
            .when_empty("what BELLJAR_NETWORK says"),
            variable(
                "BELLJAR_NETWORK_BYTES",
                A_SIZE,
                "16G",
                "Bytes that one sandbox may send and receive, together. 0: no limit.",
            ),
            variable(
                "BELLJAR_DNS",
                "addresses separated by spaces, with or without a port",
                "",
                "DNS servers that the server asks for the addresses of hosts, on behalf of\n\
                 sandboxes and for sources of datasets. Names in /etc/hosts come first.\n\
                 Example: 10.0.0.2 [fd00::2]:5353",
            )
            .when_empty("what /etc/resolv.conf says"),
            variable(
                "BELLJAR_NETWORK_SECRETS",
                "a JSON object, or @ and the path of a file with one",
                "",
                "Headers that the proxy can add to requests of sandboxes, which never see them.\n\
                 Each key is the name by which a session asks for it, with `network.inject`; each\n\
                 value an object with these keys:\n\
                 `value`: of the header. `${NAME}` in it is the variable of that name in the\n\
                 server's environment or `.env`.\n\
                 `hosts`: where it may go, such as https://api.example.com; to nobody else.\n\
                 Example: {\"MODEL\": {\"value\": \"Bearer ${MODEL_KEY}\",\n\
                 \"hosts\": [\"https://api.example.com\"]}}",
            )
            .when_empty("none")
            .secret(),
        ],
    },
    Group {
        title: "Browser",
        variables: &[
            variable(
                "BELLJAR_BROWSER_IDLE",
                "a number of seconds",
                "90",
                "How long a session's browser may be unused before it is stopped. Its cookies and\n\
                 the addresses of its tabs are kept, and the next action brings them back.",
            ),
            variable(
                "BELLJAR_BROWSER_MODEL",
                "the name of a model",
                "",
                "The model that does browser tasks which name none.",
            )
            .when_empty("whoever asks names one"),
            variable(
                "BELLJAR_BROWSER_MODEL_URL",
                "a URL such as https://api.example.com/v1",
                "",
                "Where it answers, in OpenAI's protocol. The session's network policy must allow it;\n\
                 BELLJAR_NETWORK_SECRETS can add the key on the way.",
            )
            .when_empty("whoever asks says where"),
            variable(
                "OPENAI_API_KEY",
                "an API key",
                "",
                "On a server for local use (no API keys, loopback or a UNIX socket) this is enough for browser\n\
                 tasks: gpt-5-mini does them unless BELLJAR_BROWSER_MODEL says otherwise. Sessions may ask\n\
                 for the model's host and for the proxy to add the key, which never enters a sandbox.",
            )
            .when_empty("BELLJAR_NETWORK_SECRETS adds keys, if any")
            .secret(),
            variable(
                "OPENAI_BASE_URL",
                "a URL such as https://api.example.com/v1",
                "",
                "Where OPENAI_API_KEY is for.",
            )
            .when_empty("OpenAI itself"),
        ],
    },
    Group {
        title: "Artifacts",
        variables: &[
            variable(
                "BELLJAR_KEEP_ARTIFACTS",
                YES_OR_NO,
                "0",
                "1: files stay in /session/artifacts after they were taken. 0: they are moved.",
            ),
            variable(
                "BELLJAR_ARTIFACT_SIZE",
                A_SIZE,
                "1G",
                "The largest artifact that is taken. 0: no limit.",
            ),
            variable(
                "BELLJAR_SESSION_ARTIFACTS",
                "a number",
                "100000",
                "Artifacts that one session may have. 0: no limit.",
            ),
            variable(
                "BELLJAR_SESSION_ARTIFACT_BYTES",
                A_SIZE,
                "4G",
                "What the artifacts of one session may add up to. 0: no limit.",
            ),
            variable(
                "BELLJAR_TENANT_ARTIFACTS",
                "a number",
                "1000000",
                "Artifacts that one tenant may have. 0: no limit.",
            ),
            variable(
                "BELLJAR_TENANT_ARTIFACT_BYTES",
                A_SIZE,
                "64G",
                "What the artifacts of one tenant may add up to. 0: no limit.",
            ),
            variable(
                "BELLJAR_ARTIFACT_RETENTION",
                "seconds, 0 to 315360000",
                "2592000",
                "After how long an artifact is forgotten. 0: never.",
            ),
            variable(
                "BELLJAR_LINK_TTL",
                "seconds, 1 to 315360000",
                "600",
                "How long a link to an artifact is good for.",
            ),
            variable(
                "BELLJAR_PUBLIC_URL",
                "an address such as https://sandbox.example.com",
                "",
                "What links to artifacts begin with, where clients reach the server by another\n\
                 address than the one it listens on.",
            )
            .when_empty("the address that the server listens on"),
        ],
    },
    Group {
        title: "Volumes",
        variables: &[
            variable(
                "BELLJAR_VOLUMES_DIR",
                "a directory",
                "",
                "Where volumes are kept.",
            )
            .when_empty("`volumes` below BELLJAR_HOME"),
            variable(
                "BELLJAR_VOLUME_STORAGE",
                "auto, image or directory",
                "auto",
                "How new volumes are kept. `image`: each in a file system of its own, whose size the\n\
                 kernel enforces and whose bytes are set aside; takes root, loop devices and mke2fs.\n\
                 `directory`: as plain files, whose size is looked at and not enforced. `auto`: an\n\
                 image where that is possible.",
            ),
            variable(
                "BELLJAR_VOLUME_SIZE",
                "a size such as 512M or 2G, at least 4M",
                "1G",
                "How large a volume is whose size nobody says.",
            ),
            variable(
                "BELLJAR_TENANT_VOLUMES",
                "a number; 0: no limit",
                "32",
                "How many volumes a tenant can have.",
            ),
            variable(
                "BELLJAR_TENANT_VOLUME_BYTES",
                "a size such as 512M or 2G; 0: no limit",
                "32G",
                "How large the volumes of a tenant can be together.",
            ),
        ],
    },
    Group {
        title: "How much at the same time",
        variables: &[
            variable(
                "BELLJAR_MAX_SESSIONS",
                "a number",
                "1000",
                "Sessions and runs alive at the same time. 0: no limit.",
            ),
            variable(
                "BELLJAR_MAX_MEMORY",
                A_SIZE,
                "",
                "The most that the memory limits of all sandboxes may add up to. 0: no limit.",
            )
            .when_empty("no limit"),
            variable(
                "BELLJAR_MAX_PIDS",
                "a number",
                "",
                "The most that the process limits of all sandboxes may add up to. 0: no limit.",
            )
            .when_empty("no limit"),
        ],
    },
    Group {
        title: "The server",
        variables: &[
            variable(
                "BELLJAR_LISTEN",
                "an IP address and a port, such as 127.0.0.1:8000 or [::]:8000",
                "127.0.0.1:8000",
                "Where the server listens. Make keys with `belljar key create` before it is\n\
                 anything but loopback.",
            ),
            variable(
                "BELLJAR_UNIX",
                "the path of a socket",
                "",
                "A UNIX socket to listen on instead.",
            )
            .when_empty("none"),
            variable(
                "BELLJAR_TLS_CERT",
                "a file",
                "",
                "The server's certificate with its chain, in PEM; needs BELLJAR_TLS_KEY too.",
            )
            .when_empty("no TLS"),
            variable("BELLJAR_TLS_KEY", "a file", "", "The certificate's private key, in PEM.")
                .when_empty("no TLS"),
            variable(
                "BELLJAR_ALLOWED_HOSTS",
                "host names without ports, separated by spaces",
                "",
                "Names of the server that clients may use in the Host header, besides those of\n\
                 loopback and the address it listens on.",
            )
            .when_empty("no others"),
            variable(
                "BELLJAR_ALLOWED_ORIGINS",
                "origins such as https://app.example.com, separated by spaces",
                "",
                "Web pages that may call the server from a browser, and read its answers (CORS).",
            )
            .when_empty("none"),
            variable(
                "BELLJAR_MAX_BODY",
                "a size such as 512M or 2G, at least 1K",
                "64M",
                "The largest body of a request.",
            ),
            variable(
                "BELLJAR_THREADS",
                "auto or a number from 1 to 1024",
                "auto",
                "Worker threads of the server.",
            ),
            variable(
                "BELLJAR_STALL",
                "seconds, 1 to 3600",
                "60",
                "How long a client may send less than 1 KiB per second of a body, or take nothing of its\n\
                 answer, before it is cut off.",
            ),
            variable(
                "BELLJAR_DRAIN",
                "seconds, 0 to 3600",
                "10",
                "How long a stopping server waits for requests in progress.",
            ),
        ],
    },
    Group {
        title: "Logs",
        variables: &[
            variable(
                "BELLJAR_LOG",
                "error, warn, info, debug or trace, or one of them per module, such as \
                 warn,belljar_engine=debug",
                "",
                "What to log to standard error. What people type and what code prints is never in it.",
            )
            .when_empty("info for the server, warn for other commands"),
            variable("BELLJAR_LOG_FORMAT", "text or json", "text", "How to log it."),
            variable(
                "BELLJAR_AUDIT_CODE",
                YES_OR_NO,
                "0",
                "1: the audit log has the code itself, up to 64 KiB of each. 0: only its hash.",
            ),
        ],
    },
    Group {
        title: "Commands that talk to a server",
        variables: &[
            variable(
                "BELLJAR_URL",
                "an address such as http://127.0.0.1:8000 or unix:/path/of/a/socket, or local",
                "",
                "Where the server is. `local`: the one that Python programs of this user start and\n\
                 share.",
            )
            .when_empty("the local server of Python programs if it runs, else http://127.0.0.1:8000"),
            variable(
                "BELLJAR_API_KEY",
                "a key as `belljar key create` shows it",
                "",
                "The key to show to the server.",
            )
            .when_empty("none")
            .secret(),
        ],
    },
    Group {
        title: "Benchmarks",
        variables: &[variable(
            "BELLJAR_BENCH_IMAGE",
            "the name of a docker image",
            "",
            "An image with the same packages, for `belljar bench` to compare with.",
        )
        .when_empty("docker is left out")],
    },
];
