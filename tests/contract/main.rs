//! What every backend guarantees: the same tests over HTTP, with real sandboxes made of namespaces,
//! of containers, and of containers with gVisor.

mod artifacts;
mod attacks;
mod backend;
mod browser;
mod containers;
mod directories;
mod endings;
mod engines;
mod execution;
mod files;
mod handshake;
mod languages;
mod lives;
mod misuse;
mod network;
mod shell;
mod terminals;
mod volumes;
mod walls;

use backend::Backend;

/// One test per backend and behaviour, named `BACKEND::BEHAVIOUR`.
macro_rules! contract {
    ($($behaviours:ident: $($behaviour:ident),* $(,)?;)*) => {
        contract!(@of native, Native, $($($behaviours::$behaviour),*),*);
        contract!(@of docker, Docker, $($($behaviours::$behaviour),*),*);
        contract!(@of runsc, Runsc, $($($behaviours::$behaviour),*),*);
    };
    (@of $backend:ident, $variant:ident, $($behaviours:ident::$behaviour:ident),*) => {
        mod $backend {
            $(
                #[tokio::test]
                async fn $behaviour() {
                    if let Some(backend) = crate::Backend::$variant.if_available() {
                        crate::$behaviours::$behaviour(backend).await;
                    }
                }
            )*
        }
    };
}

contract! {
    execution:
        python_remembers,
        a_shell_remembers,
        commands_have_environment_place_and_input,
        time_is_limited_and_code_is_interrupted,
        output_is_streamed_and_bounded,
        a_second_kernel_is_forked;
    endings:
        a_kernel_that_dies_is_said_to_have_died,
        memory_is_limited,
        a_fork_bomb_is_contained,
        an_end_behind_our_back_is_noticed;
    artifacts:
        many_small_files_and_a_large_one_come_out,
        hostile_files_lead_nowhere,
        a_run_leaves_its_artifacts;
    browser:
        a_page_is_used_and_a_missing_browser_is_said;
    files:
        files_go_both_ways,
        files_in_memory_are_limited,
        files_on_disk_survive,
        datasets_go_in;
    directories:
        files_grow_are_copied_moved_and_have_modes,
        files_are_found_by_pattern,
        file_changes_are_streamed_as_they_happen,
        directories_travel_as_archives;
    shell:
        heredocs_and_much_output_come_through,
        a_command_has_its_input_environment_and_user,
        prompts_without_input_fail_at_once,
        output_of_background_jobs_comes_later,
        stopped_by_its_id_a_command_takes_its_daemons_along;
    terminals:
        a_terminal_echoes_resizes_and_ends,
        a_terminal_is_left_and_found_again,
        a_terminal_outlives_the_server;
    languages:
        javascript_and_typescript_remember_or_say_what_is_missing;
    network:
        only_listed_hosts_are_reached;
    walls:
        nothing_of_the_host_is_seen,
        no_process_gains_rights,
        system_calls_are_refused,
        limits_hold,
        tenants_are_apart;
    misuse:
        a_lying_kernel_deceives_no_other_session,
        terminals_stay_within_their_session,
        what_lies_in_a_volume_gives_no_rights;
    volumes:
        volumes_are_shared,
        a_full_volume_refuses,
        volumes_outlive_everything;
    lives:
        a_successor_goes_on,
        a_session_sleeps_branches_and_goes_back,
        a_dead_zygote_stops_nothing,
        a_session_from_the_pool_is_like_any_other,
        a_stop_leaves_nothing;
}
